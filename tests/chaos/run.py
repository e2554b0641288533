"""One run: a cluster, clients and faults by a seed; then what happened is held against the promises."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.testing.clusters import TestCluster, cluster
from tests.chaos.checker import Violation, check
from tests.chaos.disks import read_disks
from tests.chaos.faults import Round, plan
from tests.chaos.history import Committed, History
from tests.chaos.injector import Injector
from tests.chaos.observer import Observer
from tests.chaos.operating import Operator
from tests.chaos.workload import Workload

__all__ = ["Outcome", "run"]

PARTITIONS: Final = 6
LEASE_S: Final = 2
PROGRESS_S_MAX: Final = 20.0  # after a round, until every partition takes records again
IN_SYNC_S_MAX: Final = 40.0  # and until every replica is in sync

Say = Callable[[str], None]


@dataclass(kw_only=True)
class Outcome:
    """What a run lived through, and what was found."""

    seed: int
    rounds: int = 0
    stuck: str = ""  # what did not come back after a round
    kept: str = ""  # where data and logs are, if something was wrong
    violations: list[Violation] = field(default_factory=list)
    history: History = field(default_factory=History)

    @property
    def is_sound(self) -> bool:
        return not self.violations and not self.stuck

    def summary(self) -> str:
        told = {(told.partition, told.epoch) for told in self.history.told}
        commits = sum(isinstance(e, Committed) for m in self.history.group.values() for e in m)
        counts: dict[str, int] = {}
        for sent in self.history.sent:
            counts[sent.outcome.value] = counts.get(sent.outcome.value, 0) + 1
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        records = sum(map(len, self.history.final.values()))
        reads = sum(map(len, self.history.seen.values()))
        return (
            f"{self.rounds} rounds; sent: {outcomes}; {records} records in the logs, {reads} reads,"
            f" {commits} commits, {len(told)} epochs"
        )


def run(
    seed: int,
    seconds: float,
    say: Say,
    *,
    program: Sequence[str] = (),
    rounds: Iterable[Round] | None = None,
) -> Outcome:
    """Hurt a cluster for so many seconds, or by these `rounds` until they are over.

    `program` is what runs instead of `penstock`.
    """
    if rounds is None:
        rounds = plan(seed, brokers=3, partitions=PARTITIONS, lease_s=LEASE_S)
    outcome = Outcome(seed=seed)
    began_s = time.monotonic()

    def stamped(text: str) -> None:
        say(f"{time.monotonic() - began_s:6.1f} s  {text}")

    program = program or (sys.executable, "-m", "penstock")
    with cluster(partitionable=True, program=program, lease_ttl_s=LEASE_S) as running:
        try:
            _run(running, outcome, rounds, seconds, stamped)
        finally:
            if not outcome.is_sound:
                outcome.kept = _keep(running)
    return outcome


def _run(
    running: TestCluster, outcome: Outcome, rounds: Iterable[Round], seconds: float, say: Say
) -> None:
    settings = {"min.insync.replicas": "2", "segment.bytes": "1000000"}
    topic = running.create_topic("chaos", partitions=PARTITIONS, replicas=3, settings=settings)
    operator = Operator(running, topic, PARTITIONS)
    injector = Injector(running, operator, say)
    observer = Observer(running, topic)
    workload = Workload(running.bootstrap, topic, partitions=PARTITIONS, seed=outcome.seed)
    workload.start()
    observer.start()
    try:
        _hurt(running, outcome, rounds, seconds, injector, workload, say)
        if not outcome.stuck:
            operator.spread_again()
            workload.stop()
            running.wait_healthy(timeout_s=IN_SYNC_S_MAX)
    except TimeoutError as error:
        outcome.stuck = str(error)
    finally:
        workload.abandon()
        observer.stop()
    if outcome.stuck:
        say(f"stuck: {outcome.stuck}")
        with contextlib.suppress(TimeoutError):
            injector.end_all()
            workload.stop(timeout_s=15)
    try:
        history = outcome.history = workload.history()
    except TimeoutError as error:
        outcome.stuck = outcome.stuck or str(error)
        return
    history.told = observer.told
    if not outcome.stuck:
        for broker in running.brokers:
            broker.terminate()
        history.disks = read_disks(running.brokers, topic)
    outcome.violations = check(history)


def _hurt(
    running: TestCluster,
    outcome: Outcome,
    rounds: Iterable[Round],
    seconds: float,
    injector: Injector,
    workload: Workload,
    say: Say,
) -> None:
    workload.wait_for_progress(PROGRESS_S_MAX)
    deadline_s = time.monotonic() + seconds
    for round_ in rounds:
        began_s, before = time.monotonic(), workload.acknowledged
        injector.perform(round_)
        healed_s = time.monotonic()
        for broker in running.brokers:
            broker.wait_ready()
        workload.wait_for_progress(PROGRESS_S_MAX)
        progress_s = time.monotonic() - healed_s
        running.wait_healthy(timeout_s=IN_SYNC_S_MAX)
        ended_s = time.monotonic()
        outcome.rounds += 1
        rate = (workload.acknowledged - before) / (ended_s - began_s)
        say(
            f"round {outcome.rounds} is over: records again after {progress_s:.1f} s,"
            f" in sync after {ended_s - healed_s:.1f} s; {rate:.0f} records/s acknowledged"
        )
        if ended_s > deadline_s:
            return


def _keep(running: TestCluster) -> str:
    """A copy of the brokers' data and logs, for whoever wants to know what happened."""
    kept = tempfile.mkdtemp(prefix="penstock-chaos-")
    shutil.copytree(os.path.dirname(running.brokers[0].data_dir), kept, dirs_exist_ok=True)
    return kept
