"""The producer's thread: batches to their leaders, answers back, all connections in one loop.

Connecting and asking for leaders block the loop for as long as a request may take; sending and
receiving never do.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterable
from typing import Final, Protocol

from penstock.client.cluster import Cluster
from penstock.client.connection import Address
from penstock.client.errors import (
    ClientError,
    DeliveryFailed,
    UnknownTopic,
    advice_on,
    error_code,
    is_passing,
)
from penstock.client.lanes import Lane
from penstock.client.produce_codec import PartitionResult
from penstock.client.produce_link import Answered, Batch, ProduceLink
from penstock.client.retrying import passes
from penstock.errors import ErrorCode
from penstock.model import TopicPartition

_REQUEST_BYTES: Final = 4 << 20  # a request is full when it has so many
_UNKNOWN_TOPIC_PATIENCE_S: Final = 2.0
_IDLE_S: Final = 1.0
_UNKNOWN: Final = {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id}


class Outbox(Protocol):
    """Where batches come from, and what became of them goes to. Its methods are called by the sender."""

    def take(self) -> list[Batch] | None:
        """What was sent since the last call; None when the sender is to end."""

    def acknowledged(self, batch: Batch, base_offset: int) -> None: ...


class Sender:
    """Runs until its outbox ends; `run` raises what ends it early."""

    def __init__(
        self, cluster: Cluster, outbox: Outbox, wake: socket.socket, acks: int, timeout_ms: int
    ) -> None:
        self._cluster = cluster
        self._outbox = outbox
        self._wake = wake
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._lanes: dict[TopicPartition, Lane] = {}
        self._links: dict[Address, ProduceLink] = {}
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        self._wake.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        try:
            while (batches := self._outbox.take()) is not None:
                for batch in batches:
                    lane = self._lanes.setdefault(batch.partition, Lane(batch.partition))
                    lane.waiting.append(batch)
                self._check_times()
                self._dispatch()
                self._wait()
        finally:
            for link in self._links.values():
                link.close()
            self._selector.close()

    # Time

    def _check_times(self) -> None:
        now = time.monotonic()
        for link in list(self._links.values()):
            try:
                link.check_time(now)
            except ClientError as error:
                self._drop(link, error)
        for lane in self._lanes.values():
            deadline = lane.deadline
            if deadline is not None and now >= deadline:
                raise _not_delivered(lane)

    def _wait(self) -> None:
        """Until something can be sent or received, a batch comes, or it is time for a next try."""
        for link in self._links.values():
            events = selectors.EVENT_READ
            if link.wants_to_send:
                events |= selectors.EVENT_WRITE
            self._selector.modify(link.connection.raw, events, link)
        for key, events in self._selector.select(self._patience()):
            link = key.data
            if link is None:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
                continue
            if events & selectors.EVENT_WRITE:
                self._send(link)
            if events & selectors.EVENT_READ and link.address in self._links:
                self._receive(link)

    def _patience(self) -> float:
        now = time.monotonic()
        times = [now + _IDLE_S]
        for lane in self._lanes.values():
            if lane.waiting and not lane.in_flight:
                times.append(lane.not_before)
            if lane.deadline is not None:
                times.append(lane.deadline)
        times += [link.in_flight[0].deadline for link in self._links.values() if link.in_flight]
        return max(0.001, min(times) - now)

    # Sending

    def _dispatch(self) -> None:
        now = time.monotonic()
        ready = [lane for lane in self._lanes.values() if lane.waiting and now >= lane.not_before]
        self._find_leaders([lane for lane in ready if lane.leader is None], now)
        by_leader: dict[Address, list[Lane]] = {}
        for lane in ready:
            if lane.leader is not None:
                by_leader.setdefault(lane.leader, []).append(lane)
        for address, lanes in by_leader.items():
            link = self._links.get(address) or self._open(address, lanes)
            if link is not None:
                self._fill(link, lanes, now)

    def _fill(self, link: ProduceLink, lanes: Iterable[Lane], now: float) -> None:
        while link.has_room:
            batches: list[Batch] = []
            size = 0
            for lane in lanes:
                if size < _REQUEST_BYTES and (batch := lane.next(now)) is not None:
                    batches.append(batch)
                    size += len(batch.data)
            if not batches:
                break
            # Those that were served go behind the others the next time.
            for batch in batches:
                self._lanes[batch.partition] = self._lanes.pop(batch.partition)
            link.submit(batches, self._acks, self._timeout_ms)
        self._send(link)

    def _find_leaders(self, lanes: list[Lane], now: float) -> None:
        if not lanes:
            return
        stale = any(lane.last_error is not None for lane in lanes)
        with contextlib.suppress(ClientError):  # whatever it is, the look-ups below tell it again
            self._cluster.topology.leaders((lane.partition for lane in lanes), fresh=stale)
        for lane in lanes:
            try:
                lane.leader = self._cluster.topology.leader(lane.partition).address
            except ClientError as error:
                self._hold_up(lane, error, now)

    def _open(self, address: Address, lanes: Iterable[Lane]) -> ProduceLink | None:
        try:
            link = ProduceLink.over(self._cluster.network.connect(address))
        except ClientError as error:
            for lane in lanes:
                self._hold_up(lane, error, time.monotonic())
            return None
        self._links[address] = link
        self._selector.register(link.connection.raw, selectors.EVENT_READ, link)
        return link

    def _hold_up(self, lane: Lane, error: ClientError, now: float) -> None:
        if not passes(error):
            raise error
        lane.delay(error, now)
        if isinstance(error, UnknownTopic) and now - lane.failing_since > _UNKNOWN_TOPIC_PATIENCE_S:
            raise error

    # Answers

    def _send(self, link: ProduceLink) -> None:
        try:
            link.send()
        except ClientError as error:
            self._drop(link, error)

    def _receive(self, link: ProduceLink) -> None:
        failure: ClientError | None = None
        try:
            link.receive()
        except ClientError as error:
            failure = error
        self._settle(link.take_answered(), link.address)
        if failure is not None:
            self._drop(link, failure)

    def _drop(self, link: ProduceLink, error: ClientError) -> None:
        """The connection failed: all that was in flight there is to be sent again."""
        now = time.monotonic()
        del self._links[link.address]
        self._selector.unregister(link.connection.raw)
        for batch in link.close():
            self._lanes[batch.partition].failed(batch, error, now)

    def _settle(self, answered: Answered, address: Address) -> None:
        now = time.monotonic()
        for batch, result in answered:
            lane = self._lanes[batch.partition]
            code = ErrorCode.unknown_server_error
            if result is not None:
                code = error_code(result.error_code)
            if result is not None and code is ErrorCode.none:
                lane.acknowledged(batch)
                self._outbox.acknowledged(batch, result.base_offset)
            elif code is ErrorCode.duplicate_sequence_number:
                lane.acknowledged(batch)  # it was written before, and its offset is forgotten
                self._outbox.acknowledged(batch, -1)
            else:
                self._refused(lane, batch, code, result, address, now)

    def _refused(
        self,
        lane: Lane,
        batch: Batch,
        code: ErrorCode,
        result: PartitionResult | None,
        address: Address,
        now: float,
    ) -> None:
        said = f" ({result.message})" if result is not None and result.message else ""
        error = DeliveryFailed(
            batch.partition,
            code,
            f"broker {address} refused a batch of {batch.records} records, {len(batch.data)} bytes, "
            f"for {batch.partition}: {code.name.upper()}{said}{advice_on(code)}",
        )
        if code is ErrorCode.out_of_order_sequence_number:
            if lane.is_oldest(batch):
                raise error
        elif not is_passing(code) or code is ErrorCode.corrupt_message:
            raise error
        lane.failed(batch, error, now)
        if code in _UNKNOWN and now - lane.failing_since > _UNKNOWN_TOPIC_PATIENCE_S:
            raise UnknownTopic(
                f"there is no partition {batch.partition}: the topic was deleted, or never there",
                code,
            )


def _not_delivered(lane: Lane) -> DeliveryFailed:
    why = "no broker has answered" if lane.last_error is None else lane.last_error.message
    unsettled = len(lane.in_flight) + len(lane.waiting)
    return DeliveryFailed(
        lane.partition,
        ErrorCode.request_timed_out,
        f"{unsettled} batches for {lane.partition} were not acknowledged in time, and may or may not be "
        f"in the log; last: {why}",
    )
