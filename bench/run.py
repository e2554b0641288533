"""What every run has: rounds that take turns, samples, load tools, a progress display, an end."""

import json
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import BenchError, allocator, machine, processes
from bench.results import Results

_CHILD_TIMEOUT_S = 600


class MeasurementError(BenchError):
    """A load tool failed, or what arrived is not what was sent. The run stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`scale` divides the amounts of a full run; `log_bytes` is the size of the log that is
    recovered or caught up with."""

    brokers: tuple[str, ...]
    rounds: int
    scale: int
    log_bytes: int
    work_dir: Path


@dataclass(slots=True)
class Run:
    """What measurements share. `close` stops and removes all that was started."""

    options: Options
    progress: Progress
    # metric key -> broker or variant -> one value for each round
    samples: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    _names: int = 0

    def record(self, key: str, broker: str, value: float) -> None:
        self.samples[key][broker].append(value)

    def amount(self, full: int) -> int:
        return max(1, full // self.options.scale)

    def rounds(self, title: str, count: int | None = None) -> Iterator[tuple[str, ...]]:
        """The brokers in the order of each round, the first place alternating.

        One turn of the progress bar for each round.
        """
        total = count or self.options.rounds
        task = self.progress.add_task(title, total=total)
        for number in range(total):
            yield self.options.brokers if number % 2 == 0 else self.options.brokers[::-1]
            self.progress.advance(task)

    def new_name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}-{self._names}"

    def load(
        self, module: str, *arguments: object, memory: Mapping[str, str] = allocator.KEEP_MEMORY
    ) -> dict[str, Any]:
        """Run a load tool of this package as its own process and read its JSON."""
        done = processes.run(
            [sys.executable, "-m", f"bench.{module}", *map(str, arguments)],
            timeout_s=_CHILD_TIMEOUT_S,
            settings=memory,
        )
        if done.returncode != 0:
            raise MeasurementError(f"bench.{module} {arguments}:\n{done.stderr}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def rdkafka_load(
        self,
        command: str,
        topic: str,
        *,
        bootstrap: str,
        pids: Iterable[int],
        messages: int,
        memory: Mapping[str, str] = allocator.KEEP_MEMORY,
        **options: object,
    ) -> dict[str, Any]:
        """Run the librdkafka tool; `pids` are those whose CPU time it counts."""
        arguments: list[object] = [command, "--topic", topic, "--messages", messages]
        arguments += ["--bootstrap", bootstrap, "--broker-pid", *pids]
        for key, value in options.items():
            arguments += ["--" + key.replace("_", "-"), value]
        result = self.load("rdkafka", *arguments, memory=memory)
        if result["messages"] != messages:
            raise MeasurementError(f"{command}: {result} but {messages} were asked")
        return result

    def close(self) -> None:
        shutil.rmtree(self.options.work_dir, ignore_errors=True)


def progress_on(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)


AnyRun = TypeVar("AnyRun", bound=Run)


def carry_out(
    run: AnyRun, measurements: Mapping[str, Callable[[AnyRun], None]], facts: Mapping[str, str]
) -> Results:
    """Make the measurements, and close the run however they end."""
    start = time.monotonic()
    try:
        for measure in measurements.values():
            measure(run)
        described = machine.describe_machine(run.options.work_dir)
    finally:
        run.close()
    return Results(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        rounds=run.options.rounds,
        minutes=(time.monotonic() - start) / 60,
        options={
            "measurements": ", ".join(measurements),
            "share of a full run's messages": f"1/{run.options.scale}",
            **facts,
        },
        machine=described,
        versions=machine.describe_versions(),
        samples={key: dict(values) for key, values in run.samples.items()},
    )


def end_on_sigterm() -> None:
    """A terminated run stops and removes its brokers like a finished one."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(_signal: int, _frame: object) -> None:
    raise SystemExit("terminated")
