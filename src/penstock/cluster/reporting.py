"""Heartbeats to the controller: LEO and HW of our logs, and what came of opening them.

Only what changed since the controller last took a report is told; a new controller is told everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

from penstock.cluster.controller import BrokerReport
from penstock.cluster.local import BrokerTerm
from penstock.cluster.replicas import Replicas
from penstock.cluster.view import ClusterView
from penstock.errors import PenstockError
from penstock.model import TopicPartition

__all__ = ["Reporter"]

logger = logging.getLogger(__name__)

_EVERY_S: Final = 0.25
_FAILURES_EVERY: Final = 4  # looks for logs that failed, in reports
_REPEAT_S: Final = 1.0  # what was said and is not in the store yet is said again

Send = Callable[[int, BrokerReport], Awaitable[None]]


class Reporter:
    """Reports for one broker, to whoever is the controller."""

    def __init__(self, term: BrokerTerm, view: ClusterView, replicas: Replicas, send: Send) -> None:
        self._term = term
        self._view = view
        self._replicas = replicas
        self._send = send
        self._told_to = ""  # the controller's incarnation, and ours
        self._opened_at: dict[TopicPartition, float] = {}  # when it was said what came of opening

    async def run(self) -> None:
        """For ever."""
        for round_number in count(1):
            await asyncio.sleep(_EVERY_S)
            if round_number % _FAILURES_EVERY == 0:
                self._replicas.note_failures()
            try:
                await self._report()
            except PenstockError as error:
                logger.debug("the controller was not told: %s", error)
            except Exception:
                logger.exception("a report failed; it is tried again")

    async def _report(self) -> None:
        claim, replicas = self._view.controller, self._replicas
        if claim is None or self._term.is_over:
            return
        told_to = f"{claim.value.incarnation}/{self._term.incarnation}"
        if told_to != self._told_to:
            self._opened_at, self._told_to = {}, told_to
            replicas.grown.update((hosted.partition, None) for hosted in replicas.all())
            replicas.unconfirmed.update(dict.fromkeys(replicas.opened))
        now = asyncio.get_running_loop().time()
        opened = self._to_confirm(now)
        if not replicas.grown and not opened:
            return
        grown, replicas.grown = replicas.grown, {}
        hosted = [found for partition in grown if (found := replicas.get(partition)) is not None]
        report = BrokerReport(
            broker=self._term.id,
            incarnation=self._term.incarnation,
            log_ends={one.partition: one.log.log_end_offset for one in hosted},
            high_watermarks={
                one.partition: one.log.high_watermark
                for one in hosted
                if one.replica.leadership is not None
            },
            opened=opened,
        )
        try:
            await self._send(claim.value.broker, report)
        except BaseException:
            replicas.grown.update(grown)
            raise
        self._opened_at.update(dict.fromkeys(opened, now))

    def _to_confirm(self, now: float) -> dict[TopicPartition, str | None]:
        """What came of opening replicas, if the store does not show it and it was not said just now."""
        replicas = self._replicas
        for partition in [p for p in replicas.unconfirmed if not replicas.is_news(p)]:
            del replicas.unconfirmed[partition]
            self._opened_at.pop(partition, None)
        return {
            partition: replicas.opened[partition]
            for partition in replicas.unconfirmed
            if now - self._opened_at.get(partition, -_REPEAT_S) >= _REPEAT_S
        }
