"""This broker as a member of a cluster: what it knows, what it holds, and the controller if it is it.

Everything that the store says, by watch, snapshot, own commit or refused compare, goes through `apply`,
so that the view, the replicas, the controller and whoever observes see the same, in the same order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from penstock.clock import Clock
from penstock.cluster.controller import BrokerReport, ControllerSettings
from penstock.cluster.controlling import ControllerSeat
from penstock.cluster.fetching import Fetchers
from penstock.cluster.local import BrokerTerm
from penstock.cluster.membership import Membership
from penstock.cluster.peers import Peers
from penstock.cluster.proposals import Proposals
from penstock.cluster.replicas import Replicas
from penstock.cluster.reporting import Reporter
from penstock.cluster.state import (
    BROKERS,
    CONTROLLER,
    PARTITIONS,
    TOPICS,
    BrokerRegistration,
    TopicState,
    partition_key,
)
from penstock.cluster.view import (
    BrokerChanged,
    Change,
    ClusterView,
    ControllerChanged,
    PartitionChanged,
    TopicChanged,
)
from penstock.log import LogStore
from penstock.metadata.errors import MetadataError
from penstock.metadata.store import Lease, MetadataStore
from penstock.metadata.watching import PrefixWatcher
from penstock.model import BrokerInfo, TopicPartition
from penstock.settings import BrokerConfig, TopicConfig

__all__ = ["ClusterNode", "Registrant"]

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.1
_WATCH_DELAY_S: Final = 1.0  # a watch that is further behind is not waited for
_CONTROLLER_TICKS: Final = 10  # our ticks between two of the controller's
_HAND_OVER_S_MAX: Final = 10.0
_LISTED_S: Final = 2.0  # after its lease, a broker that is gone is still named to clients


class Registrant(Protocol):
    """Who does something on the lease of this broker's registration."""

    def registered(self, lease: Lease, incarnation: str) -> None: ...

    def unregistered(self) -> None: ...


class ClusterNode:
    """One member. `start` first, `leave` and `stop` last; belongs to one event loop."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        info: BrokerInfo,
        store: MetadataStore,
        logs: LogStore,
        clock: Clock,
        topic_config: Callable[[TopicState], TopicConfig],
    ) -> None:
        self.view = ClusterView()
        self.term = BrokerTerm(id=info.id, storage_id=logs.storage_id)
        # Brokers as clients are told of them: one that is gone stays for a while. When etcd was away, all
        # of them lose their registrations in the same moment, and clients that are told of no broker
        # forget all they know; some, librdkafka among them, do not come back from that.
        self.listed: dict[int, BrokerInfo] = {info.id: info}
        self._listed_s = config.lease_ttl_s + _LISTED_S
        self.observers: list[Callable[[Change], None]] = []  # told of every change of the view
        self.registrants: list[Registrant] = []
        self._store = store
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: set[TopicPartition] = set()
        registration = BrokerRegistration(
            id=info.id,
            host=info.host,
            port=info.port,
            incarnation="",
            storage_id=logs.storage_id,
            rack=info.rack,
        )
        self.membership = Membership(
            store, registration, self.term, config.lease_ttl_s, clock, self
        )
        self._proposals = Proposals(store, self.apply, self.spawn)
        self.replicas = Replicas(
            term=self.term,
            view=self.view,
            logs=logs,
            config=config,
            clock=clock,
            topic_config=topic_config,
            propose=self._proposals.add,
            refresh=self._refresh,
        )
        self.peers = Peers(config)
        self._fetchers = Fetchers(self.peers, self.term, self.replicas, config)
        self.replicas.fetchers = self._fetchers
        defaults = TopicConfig.from_settings(config.topic_defaults, {})
        settings = ControllerSettings(unclean_elections=defaults.unclean_leader_election_enable)
        self.seat = ControllerSeat(
            store, self.view, self.term, clock, self.apply, self.spawn, settings
        )
        self._reporter = Reporter(self.term, self.view, self.replicas, self._send_report)
        self._watchers = [
            PrefixWatcher(store, prefix, self.apply, self.view.keys)
            for prefix in (BROKERS, TOPICS, PARTITIONS, CONTROLLER)
        ]

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register, learn what there is, and take part. `ConfigError` if another has our id."""
        await self.membership.join()
        for watcher in self._watchers:
            await watcher.start()
        self.replicas.start()
        self.seat.start()
        self.spawn(self._tick_for_ever())
        self.spawn(self._reporter.run())

    async def hand_over(self) -> None:
        """Say that we leave, and wait until others lead what we led, or it takes too long."""
        try:
            await self.membership.announce_leaving()
        except MetadataError as error:
            logger.warning("leaving without a hand-over: %s", error)
            return
        if len(self.view.brokers) < 2 or self.term.is_over:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HAND_OVER_S_MAX):
                await self.replicas.until_nothing_is_led()
                return
        logger.warning("some partitions found no other leader; stopping nevertheless")

    async def stop(self) -> None:
        """Give the lease back and end everything. Logs and store are their owner's to close."""
        await self.membership.leave()
        for watcher in self._watchers:
            await watcher.stop()
        await self.replicas.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fetchers.close()
        await self.peers.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("work of the cluster failed", exc_info=error)

    async def _tick_for_ever(self) -> None:
        for number in count(1):
            await asyncio.sleep(_TICK_S)
            try:
                self.replicas.tick()
                if number % _CONTROLLER_TICKS == 0:
                    self.seat.tick()
            except Exception:
                logger.exception("a tick failed")

    # -- membership -----------------------------------------------------------------------------

    def registered(self, lease: Lease, *, is_first: bool) -> None:
        if not is_first:
            self.replicas.registered_anew()
        self.seat.registered(lease)
        for registrant in self.registrants:
            registrant.registered(lease, self.term.incarnation)

    def unregistered(self) -> None:
        self.seat.unregistered()
        for registrant in self.registrants:
            registrant.unregistered()

    def lease_renewed(self) -> None:
        self.replicas.lease_renewed()

    def holds_lease(self) -> bool:
        return self.term.holds_lease(self._clock.monotonic_s())

    # -- metadata -------------------------------------------------------------------------------

    def apply(self, key: str, value: bytes | None, revision: int) -> None:
        """One key as the store has it at `revision`; what is known already changes nothing."""
        try:
            change = self.view.apply(key, value, revision)
        except MetadataError as error:
            logger.error("a key is left out: %s", error)
            return
        if change is None:
            return
        tell: list[Callable[[Change], None]] = [
            partial(self._changed, revision),
            self.seat.changed,
            *self.observers,
        ]
        for hear in tell:
            try:
                hear(change)
            except Exception:  # the others are not told again
                logger.exception("news of %s were not taken in by all", key)

    def _changed(self, revision: int, change: Change) -> None:
        match change:
            case PartitionChanged():
                self.replicas.changed(change.partition, revision)
            case TopicChanged():
                self.replicas.topic_changed(change.topic)
            case BrokerChanged():
                self._broker_changed(change.broker, revision)
            case ControllerChanged():
                self.seat.claim_changed()

    def _broker_changed(self, broker: int, revision: int) -> None:
        registered = self.view.brokers.get(broker)
        self._list(broker, registered)
        if broker == self.term.id:
            self.membership.seen(registered, revision)
        else:
            address = None if registered is None else (registered.host, registered.port)
            self.peers.update(broker, address)
        self.replicas.brokers_changed()

    def _list(self, broker: int, registered: BrokerRegistration | None) -> None:
        if registered is None:
            asyncio.get_running_loop().call_later(self._listed_s, self._unlist, broker)
        else:
            self.listed[broker] = BrokerInfo(
                id=broker, host=registered.host, port=registered.port, rack=registered.rack
            )

    def _unlist(self, broker: int) -> None:
        if broker not in self.view.brokers and broker != self.term.id:
            self.listed.pop(broker, None)

    def _refresh(self, partition: TopicPartition) -> None:
        """Somebody knows more of a partition than we: look, if the watch does not come by itself."""
        if partition not in self._refreshing:
            self._refreshing.add(partition)
            self.spawn(self._read(partition))

    async def _read(self, partition: TopicPartition) -> None:
        known = self.view.partitions.get(partition)
        try:
            await asyncio.sleep(_WATCH_DELAY_S)
            if self.view.partitions.get(partition) is not known:
                return
            entry = await self._store.get(partition_key(partition))
            if entry is not None:
                self.apply(entry.key, entry.value, entry.mod_revision)
        except MetadataError as error:
            logger.debug("no news of %s: %s", partition, error)
        finally:
            self._refreshing.discard(partition)

    # -- reports --------------------------------------------------------------------------------

    def on_report(self, report: BrokerReport) -> None:
        """Of another broker, for the controller. NOT_CONTROLLER if that is not us."""
        self.seat.report(report)

    async def _send_report(self, controller: int, report: BrokerReport) -> None:
        if controller == self.term.id:
            self.seat.report(report)
        else:
            await self.peers.report(controller, report)
