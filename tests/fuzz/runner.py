"""Throws frames at a broker in a process of its own, and watches it: it must go on as if nothing was.

Checked throughout: the process lives; another client is served, and finds its own records as it wrote
them; memory stays bounded. Checked at the end: no traceback in the log, nobody left connected, and as
many files open as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import psutil

from penstock.testing import ProcessBroker, broker_process
from tests.fuzz.frames import PARTITIONS, TOPICS, Frames
from tests.kafka.batches import make_batch, records_in
from tests.kafka.wire import Wire, fetch, frame, only_partition, produce, request, topic_id

_SENTINEL_ID: Final = 0x5EA7  # the correlation id of the request that tells whether one is heard
_SENTINEL: Final = frame(request("api_versions", 0), _SENTINEL_ID)
_PATIENCE_S: Final = 1.0  # how long to wait for an answer that may be a long time in coming
_STALL_S: Final = 15.0  # longer than any machine is too busy for
_GROWTH_BYTES_MAX: Final = 150 << 20
_WARM_UP: Final = 0.1  # the part of the run after which memory must not grow as it did

SETTINGS: Final = {
    # What fuzzing makes is meant to go away again while it runs.
    "auto_create_topics": False,
    "group_session_timeout_ms_min": 100,
    "group_session_timeout_ms_max": 2_000,
    "offsets_retention_ms": 1_000,
    "producer_expiry_ms": 1_000,
    "retention_check_interval_ms": 500,
    "fetch_sessions_max": 50,
    "topic_defaults": {
        "retention.bytes": "1000000",
        "segment.bytes": "100000",
        "retention.ms": "-1",
    },
}


@dataclasses.dataclass
class Outcome:
    """What a run came to."""

    seed: int
    frames: int = 0
    answered: int = 0  # and the connection stayed open
    closed: int = 0
    waited: int = 0  # neither, for as long as anybody wants to wait
    seconds: float = 0.0
    steady_requests: int = 0
    steady_slowest_s: float = 0.0
    memory_before: int = 0
    memory_after: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        mib = 1 << 20
        return (
            f"{self.frames} frames in {self.seconds:.1f} s, seed {self.seed}: "
            f"{self.answered} answered, {self.closed} closed, {self.waited} waited; "
            f"another client had {self.steady_requests} answers, the slowest in "
            f"{self.steady_slowest_s * 1000:.0f} ms; memory {self.memory_before / mib:.0f} MiB "
            f"warm, {self.memory_after / mib:.0f} MiB at the end"
            + "".join(f"\nPROBLEM: {problem}" for problem in self.problems)
        )


def run(
    frame_count: int,
    seed: int,
    *,
    connections: int = 16,
    log_level: str = "info",
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    outcome = Outcome(seed)
    with broker_process(log_level=log_level, **SETTINGS) as process:
        ids = _prepare(process)
        sockets = _count_open(process, "socket:")
        with _steady_client(process, outcome):
            asyncio.run(_Fuzzing(process, outcome, frame_count, connections, ids, report).run())
        _check_end(process, outcome, sockets)
    return outcome


def _prepare(process: ProcessBroker) -> tuple[uuid.UUID, ...]:
    for name in (*TOPICS, "steady"):
        process.create_topic(name, partitions=PARTITIONS)
    with Wire(process.bootstrap) as wire:
        return tuple(topic_id(wire, name) for name in TOPICS)


def _count_open(process: ProcessBroker, what: str) -> int:
    """How many of the broker's open files have names with this in them."""
    count = 0
    directory = f"/proc/{process.pid}/fd"
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):
            count += re.search(what, os.readlink(f"{directory}/{name}")) is not None
    return count


class _Fuzzing:
    """Some connections at once, each sending frame after frame for as long as it stays open."""

    def __init__(
        self,
        process: ProcessBroker,
        outcome: Outcome,
        frame_count: int,
        connections: int,
        topic_ids: tuple[uuid.UUID, ...],
        report: Callable[[str], None],
    ) -> None:
        self._process = process
        self._outcome = outcome
        self._frame_count = frame_count
        self._connections = connections
        self._topic_ids = topic_ids
        self._report = report
        self._sent = 0
        self._recent: deque[bytes] = deque(maxlen=200)  # for whoever looks for the culprit

    async def run(self) -> None:
        begun = time.monotonic()
        workers = [
            asyncio.create_task(self._work(self._outcome.seed * 1000 + number))
            for number in range(self._connections)
        ]
        watch = asyncio.create_task(self._watch(begun))
        try:
            await asyncio.gather(*workers)
        except OSError as error:
            self._fail(f"cannot connect any more: {error}")
        finally:
            for task in (watch, *workers):
                task.cancel()
            await asyncio.gather(watch, *workers, return_exceptions=True)
        self._outcome.seconds = time.monotonic() - begun
        self._outcome.frames = self._sent

    def _fail(self, problem: str) -> None:
        recent = b"".join(struct.pack(">i", len(data)) + data for data in self._recent)
        path = f"fuzz-{self._outcome.seed}.frames"
        with open(path, "wb") as file:
            file.write(recent)
        self._outcome.problems.append(f"{problem} (the last frames are in {path})")
        self._sent = self._frame_count

    async def _work(self, seed: int) -> None:
        frames = Frames(seed, self._topic_ids)
        host, _, port = self._process.bootstrap.rpartition(":")
        while self._sent < self._frame_count:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                while self._sent < self._frame_count and await self._throw(frames, reader, writer):
                    continue
            except (ConnectionError, asyncio.IncompleteReadError):
                self._outcome.closed += 1
            finally:
                writer.close()

    async def _throw(
        self, frames: Frames, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send one frame; whether the connection is still of use."""
        data, is_whole = frames.next()
        self._sent += 1
        self._recent.append(data)
        writer.write(data + _SENTINEL if is_whole else data)
        if not is_whole:
            writer.write_eof()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while await _answer(reader) != _SENTINEL_ID:
                    continue
        except TimeoutError:
            self._outcome.waited += 1
            return False
        self._outcome.answered += 1
        return True

    async def _watch(self, begun: float) -> None:
        """Memory and life of the broker, twice a second."""
        broker = psutil.Process(self._process.pid)
        while True:
            await asyncio.sleep(0.5)
            if not self._process.running:
                self._fail("the broker died")
                return
            memory = broker.memory_info().rss
            if self._sent >= self._frame_count * _WARM_UP and not self._outcome.memory_before:
                self._outcome.memory_before = memory
            before = self._outcome.memory_before or memory
            if memory - before > _GROWTH_BYTES_MAX:
                self._fail(f"memory grew from {before} to {memory} bytes")
                return
            seconds = time.monotonic() - begun
            self._report(
                f"{self._sent} frames, {self._sent / seconds:.0f}/s, "
                f"{memory / (1 << 20):.0f} MiB, slowest steady answer "
                f"{self._outcome.steady_slowest_s * 1000:.0f} ms"
            )


async def _answer(reader: asyncio.StreamReader) -> int:
    """The correlation id of the next answer."""
    size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
    await reader.readexactly(size - 4)
    return int(correlation_id)


@contextlib.contextmanager
def _steady_client(process: ProcessBroker, outcome: Outcome) -> Iterator[None]:
    """Somebody who writes and reads throughout, and must not notice anything."""
    stop = threading.Event()
    problems: list[BaseException] = []

    def work() -> None:
        try:
            with Wire(process.bootstrap, timeout_s=_STALL_S) as wire:
                while not stop.wait(0.005):
                    _steady_round(wire, outcome)
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_STALL_S * 2)
    if thread.is_alive() or problems:
        outcome.problems.append(f"another client was disturbed: {problems or 'it hangs'}")


def _steady_round(wire: Wire, outcome: Outcome) -> None:
    begun = time.monotonic()
    value = b"%d" % outcome.steady_requests
    answer = only_partition(wire.ask(produce(9, "steady", {0: make_batch(value)}, acks=1)))
    assert answer.error_code == 0, f"a steady write failed: {answer}"
    offset = answer.base_offset
    found = only_partition(wire.ask(fetch(12, {"steady": {0: offset}})))
    read = [item for item in records_in(found.records) if item[0] == offset]
    assert read == [(offset, value)], f"a steady record at {offset} is not {value!r}: {found}"
    outcome.steady_requests += 2
    outcome.steady_slowest_s = max(outcome.steady_slowest_s, time.monotonic() - begun)


def _check_end(process: ProcessBroker, outcome: Outcome, sockets: int) -> None:
    if not process.running:
        outcome.problems.append(f"the broker died; its log ends:\n{process.log_text[-3000:]}")
        return
    outcome.memory_after = psutil.Process(process.pid).memory_info().rss
    _check_log(process, outcome)
    with Wire(process.bootstrap) as wire:
        names = [topic.name for topic in wire.ask(request("metadata", 9, topics=None)).topics]
        for start in range(0, len(names), 100):
            some = names[start : start + 100]
            wire.ask(request("delete_topics", 5, topic_names=some, timeout=30_000))
    # With all topics gone, so are their files; and with all clients gone, their connections.
    for what, expected in (("socket:", sockets), (r"\d{20}\.log", 0), (r"\(deleted\)", 0)):
        deadline_s = time.monotonic() + _STALL_S
        while _count_open(process, what) > expected and time.monotonic() < deadline_s:
            time.sleep(0.05)
        left = _count_open(process, what)
        if left > expected:
            outcome.problems.append(f"{left} files {what!r} are still open, of {expected} before")


def _check_log(process: ProcessBroker, outcome: Outcome) -> None:
    lines = process.log_text.splitlines()
    for number, line in enumerate(lines):
        if "Traceback" in line or " ERROR " in line:
            outcome.problems.append("the log has:\n" + "\n".join(lines[number : number + 40]))
            return
