"""Heartbeats to the controller: how long our logs are, and what came of opening them.

Only what changed since the controller last took a report is told; a new controller is told everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
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
        self._told: dict[TopicPartition, int] = {}  # log ends that the controller has
        self._told_to = ""  # its incarnation, and ours
        self._opened_at: dict[TopicPartition, float] = {}  # when it was said what came of opening

    async def run(self) -> None:
        """For ever."""
        for round_number in _count():
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
        claim = self._view.controller
        if claim is None or self._term.is_over:
            return
        told_to = f"{claim.value.incarnation}/{self._term.incarnation}"
        if told_to != self._told_to:
            self._told, self._opened_at, self._told_to = {}, {}, told_to
        now = asyncio.get_running_loop().time()
        log_ends = {
            hosted.partition: hosted.log.log_end_offset
            for hosted in self._replicas.all()
            if self._told.get(hosted.partition) != hosted.log.log_end_offset
        }
        opened = {
            partition: error
            for partition, error in self._replicas.opened.items()
            if self._replicas.is_news(partition)
            and now - self._opened_at.get(partition, -_REPEAT_S) >= _REPEAT_S
        }
        if not log_ends and not opened:
            return
        report = BrokerReport(
            broker=self._term.id,
            incarnation=self._term.incarnation,
            log_ends=log_ends,
            opened=opened,
        )
        await self._send(claim.value.broker, report)
        self._told.update(log_ends)
        self._opened_at.update(dict.fromkeys(opened, now))
        for partition in [p for p in self._told if self._replicas.get(p) is None]:
            del self._told[partition]


def _count() -> range:
    return range(1, 2**62)
