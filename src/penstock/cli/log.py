"""`penstock log`: look into the log files of a data directory, check them and mend them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.failure import Exit
from penstock.cli.options import Json, Yes, examples

if TYPE_CHECKING:
    from penstock.cli.logfiles import Partition
    from penstock.log.inspect import Report

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Dump, verify, repair the log files of a data directory, without a broker.",
)

Directory = Annotated[
    str, typer.Argument(metavar="DIRECTORY", help="A data directory, or one partition's directory.")
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:P,P]",
        help="Only this topic, or these partitions of it. May be repeated.",
    ),
]


@app.command(
    epilog=examples(
        "penstock log dump data --topic orders:0",
        "penstock log dump data --records --json : every record as a JSON line",
    )
)
def dump(
    directory: Directory,
    topics: Topics = None,
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Also print the records of each batch.")
    ] = False,
    json: Json = False,
) -> None:
    """Print every record batch, and every damaged range, as it lies on disk."""
    from penstock.cli.logfiles import find, show_batches

    for partition in find(directory, topics):
        show_batches(partition, records=records, json=json)


@app.command(
    epilog=examples(
        "penstock log verify data",
        note=(
            "Exit code 1 if anything needs repair. A torn tail, as a crash leaves it, does not: the "
            "broker cuts it at its next start. Beside a running broker, what is just being written "
            "may look torn."
        ),
    )
)
def verify(directory: Directory, topics: Topics = None, json: Json = False) -> None:
    """Check every batch and every index. Changes nothing, and may run beside a broker."""
    from penstock.cli.logfiles import check, find

    reports = check(find(directory, topics))
    damaged = [report for _, report in reports if _needs_repair(report)]
    if json:
        output.document(
            {"sound": not damaged, "partitions": [_described(*item) for item in reports]}
        )
    else:
        _show(reports)
        if not damaged:
            output.line("Everything is as it was written.")
    if damaged:
        if not json:
            output.note(f"`penstock log repair {directory}` mends it, with the broker stopped.")
        raise typer.Exit(Exit.FAILED)


@app.command(
    epilog=examples(
        "penstock log repair data --topic orders:0",
        note=(
            "Damaged ranges are cut out and kept in files ending in .damaged; the records around them "
            "keep their offsets, and those that were lost leave a gap. Stop the broker first."
        ),
    )
)
def repair(
    directory: Directory, topics: Topics = None, yes: Yes = False, json: Json = False
) -> None:
    """Mend damaged logs so that the broker serves them again. The broker must be stopped."""
    from penstock.cli.logfiles import check, exclusive, find, mend

    with exclusive(directory):
        found = find(directory, topics)
        reports = [item for item in check(found) if not item[1].is_sound]
        if not json:
            _show(reports)
        if reports:
            output.confirm(
                f"Mend {len(reports)} of {output.count(len(found), 'partition')}?", yes=yes
            )
        mended = mend([partition for partition, _ in reports])
    if json:
        output.document({"partitions": [_described(*item) for item in mended]})
        return
    for _, report in mended:
        for path in report.kept:
            output.line(f"What was cut out is kept in {path}.")
    output.line(
        f"Mended {output.count(len(mended), 'partition')}." if mended else "Nothing to mend."
    )


def _needs_repair(report: Report) -> bool:
    return any(not problem.is_torn_tail for problem in report.problems)


def _show(reports: list[tuple[Partition, Report]]) -> None:
    columns = [
        "topic",
        "partition",
        "segments",
        "batches",
        "records",
        "start",
        "end",
        "size",
        "state",
    ]
    rows: list[list[output.Cell]] = []
    for partition, report in reports:
        span = [report.start_offset, report.end_offset]
        counts = [report.segments, report.batches, report.records, *span]
        state = "sound" if report.is_sound else output.count(len(report.problems), "problem")
        rows.append([partition.topic, partition.number, *counts, output.size(report.bytes), state])
    if rows:
        output.table(columns, rows)
    for _, report in reports:
        for problem in report.problems:
            kind = " (a torn tail)" if problem.is_torn_tail else ""
            output.line(f"{problem.path} at byte {problem.position}: {problem.reason}{kind}")


def _described(partition: Partition, report: Report) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "directory": report.directory,
        "segments": report.segments,
        "bytes": report.bytes,
        "batches": report.batches,
        "records": report.records,
        "start": report.start_offset,
        "end": report.end_offset,
        "problems": [
            {
                "path": problem.path,
                "position": problem.position,
                "end": problem.end,
                "reason": problem.reason,
                "torn_tail": problem.is_torn_tail,
                "index": problem.is_index,
            }
            for problem in report.problems
        ],
        "kept": report.kept,
    }
