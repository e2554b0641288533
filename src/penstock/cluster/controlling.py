"""The controller at work: claims the part when it is free, and commits what `Controller` decides."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from penstock.clock import Clock
from penstock.cluster.controller import BrokerReport, Controller, ControllerSettings, Decision
from penstock.cluster.local import BrokerTerm
from penstock.cluster.state import CONTROLLER, ControllerClaim, encode_controller
from penstock.cluster.view import Change, ClusterView
from penstock.errors import ApiError, ErrorCode
from penstock.metadata.errors import MetadataError
from penstock.metadata.store import (
    Committed,
    Compare,
    Lease,
    MetadataStore,
    Put,
    Rejected,
    Transaction,
)
from penstock.metadata.watching import Apply, apply_refused

__all__ = ["ControllerSeat"]

logger = logging.getLogger(__name__)

_CLAIM_WITHIN_S: Final = 0.05  # so that not all brokers try in the same moment
_CLAIM_AGAIN_S: Final = 0.2


class ControllerSeat:
    """Of one broker. There is a `controller` while the store says that this broker is it."""

    def __init__(
        self,
        store: MetadataStore,
        view: ClusterView,
        term: BrokerTerm,
        clock: Clock,
        apply: Apply,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        settings: ControllerSettings,
    ) -> None:
        self._store = store
        self._view = view
        self._term = term
        self._clock = clock
        self._apply = apply
        self._spawn = spawn
        self._settings = settings
        self.controller: Controller | None = None
        self._lease: Lease | None = None
        self._is_started = False
        self._is_claiming = False
        self._is_deciding = False

    # -- who is it ------------------------------------------------------------------------------

    def start(self) -> None:
        """The view is complete. Who decided before that would take what it does not know for missing."""
        self._is_started = True
        self.claim_changed()

    def registered(self, lease: Lease) -> None:
        self._lease = lease
        self.claim_changed()

    def unregistered(self) -> None:
        self._lease = self.controller = None

    def claim_changed(self) -> None:
        """The controller is who the store says, also if the answer to its claim was lost."""
        if not self._is_started:
            return
        revision = self._view.claim_revision(self._term.incarnation)
        if self._lease is None or revision is None:
            self.controller = None
            if self._view.controller is None:
                self._claim_in(random.uniform(0.0, _CLAIM_WITHIN_S))
        elif self.controller is None or self.controller.guard.mod_revision != revision:
            logger.info("this broker is the controller revision=%d", revision)
            now = self._clock.monotonic_s()
            self.controller = Controller(self._view, revision, self._settings, now)
            self._commit_all(self.controller.take_over(now))

    def _claim_in(self, seconds: float) -> None:
        if not self._is_claiming and self._lease is not None:
            self._is_claiming = True
            self._spawn(self._claim(seconds))

    async def _claim(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            while self._view.controller is None and self._lease is not None:
                if await self._claim_once(self._lease):
                    return
                await asyncio.sleep(_CLAIM_AGAIN_S)
        finally:
            self._is_claiming = False

    async def _claim_once(self, lease: Lease) -> bool:
        """Whether there is a controller now: this broker, or who was faster, if it has not gone since."""
        claim = ControllerClaim(broker=self._term.id, incarnation=self._term.incarnation)
        put = Put(key=CONTROLLER, value=encode_controller(claim), lease_id=lease.id)
        compare = Compare(key=CONTROLLER, mod_revision=0)
        try:
            result = await self._store.commit(Transaction(compares=(compare,), puts=(put,)))
        except MetadataError as error:
            logger.warning("claiming the controller's part failed: %s", error)
            return False
        if isinstance(result, Rejected):
            apply_refused(self._apply, result)
        else:
            self._apply(CONTROLLER, put.value, result.revision)
        return self._view.controller is not None

    # -- what it decides ------------------------------------------------------------------------

    def changed(self, change: Change) -> None:
        """The view has changed. It decides when all that came with it has been applied."""
        if self.controller is None:
            return
        self.controller.changed(change, self._clock.monotonic_s())
        if not self._is_deciding:
            self._is_deciding = True
            asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        self._is_deciding = False
        if self.controller is not None:
            self._commit_all(self.controller.decide())

    def report(self, report: BrokerReport) -> None:
        """What a broker says of itself. NOT_CONTROLLER if another broker should be told.

        STALE_BROKER_EPOCH if its registration is not the one known here: if it is a newer one, the watch
        will show that, and the broker is to say it again.
        """
        if self.controller is None:
            raise ApiError(ErrorCode.not_controller, "this broker is not the controller")
        registered = self._view.brokers.get(report.broker)
        if registered is None or registered.incarnation != report.incarnation:
            raise ApiError(ErrorCode.stale_broker_epoch, "the registration is not known here")
        self._commit_all(self.controller.report(report))

    def tick(self) -> None:
        if self.controller is not None:
            self._commit_all(self.controller.tick(self._clock.monotonic_s()))

    def _commit_all(self, decisions: list[Decision]) -> None:
        if self.controller is not None and self.controller.losses:
            for loss in self.controller.losses:
                logger.error("a replica that was not in sync leads, records may be lost: %s", loss)
            self.controller.losses.clear()
        for decision in decisions:
            assert self.controller is not None
            self._spawn(self._commit(self.controller, decision))

    async def _commit(self, controller: Controller, decision: Decision) -> None:
        try:
            result = await self._store.commit(decision.transaction)
        except Exception as error:  # whatever it was, its partitions must not be left alone
            logger.warning("a decision of the controller has an unknown outcome: %r", error)
            controller.unknown(decision)
            return
        if isinstance(result, Committed):
            for put in decision.transaction.puts:
                self._apply(put.key, put.value, result.revision)
            for delete in decision.transaction.deletes:
                self._apply(delete.key, None, result.revision)
        else:
            apply_refused(self._apply, result)
        if self.controller is not controller:
            return
        now = self._clock.monotonic_s()
        if isinstance(result, Committed):
            self._commit_all(controller.committed(decision, result.revision, now))
        else:
            self._commit_all(controller.rejected(decision, result, now))
