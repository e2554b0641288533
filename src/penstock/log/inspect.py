"""Looking into logs on disk, and mending them: what `penstock log dump|verify|repair` does.

Works on files alone. `verify` and `dump` only read, and may run beside a broker. `repair` must have the
data directory to itself. It never throws bytes away: what it cuts out of a segment is kept beside it in
`{base offset}.{position}.damaged`, and the offsets that were lost stay unused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import CorruptLogError, StorageError
from penstock.log import checkpoint
from penstock.log.index import OFFSET_ENTRY
from penstock.log.ownership import OWN_DIRECTORY, forget_storage_id
from penstock.log.partition_log import PartitionLog
from penstock.log.recovery import list_segments
from penstock.log.scan import Damage, ScannedBatch, scan
from penstock.log.segment import LOG_SUFFIX, OpenFiles, Segment
from penstock.model import TopicPartition
from penstock.settings import TopicConfig

Progress = Callable[[int], None]  # called with the bytes looked at since the last call

_COPY_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong in one file: bytes `[position, end)` of a segment, or an index."""

    path: str
    position: int
    end: int
    reason: str
    is_torn_tail: bool = False  # the broker cuts it by itself at its next start
    is_index: bool = False  # nothing is lost: the index is made anew


@dataclass(slots=True, kw_only=True)
class Report:
    """What one partition's log holds."""

    directory: str
    segments: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    start_offset: int = -1
    end_offset: int = -1
    problems: list[Problem] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # files with what repair cut out

    @property
    def is_sound(self) -> bool:
        return not self.problems


def find_logs(data_dir: str) -> list[tuple[TopicPartition, str]]:
    """Every partition in a data directory, with its own directory, in order."""
    found: list[tuple[TopicPartition, str]] = []
    for topic in sorted(os.listdir(data_dir)):
        topic_dir = os.path.join(data_dir, topic)
        if topic.startswith("@") or not os.path.isdir(topic_dir):
            continue
        indexes = sorted(int(name) for name in os.listdir(topic_dir) if name.isdigit())
        found += [(TopicPartition(topic, i), os.path.join(topic_dir, str(i))) for i in indexes]
    return found


def size_of(directory: str) -> int:
    """Bytes of a partition's segments: the total that a progress display counts towards."""
    return sum(segment.size for segment in _segments(directory))


def batches(directory: str) -> Iterator[tuple[str, ScannedBatch | Damage]]:
    """Every batch and every damaged range of a partition, with the file it is in."""
    for segment in _segments(directory):
        for found in scan(segment.path, next_offset=segment.base_offset):
            yield segment.path, found


def verify(directory: str, progress: Progress | None = None) -> Report:
    """Check every batch and every index entry of a partition. Changes nothing."""
    report = Report(directory=directory)
    next_offset = 0
    for segment in _segments(directory):
        report.segments += 1
        report.bytes += segment.size
        if report.start_offset < 0:
            report.start_offset = segment.base_offset
        if segment.base_offset < next_offset:
            report.problems.append(
                Problem(
                    path=segment.path, position=0, end=segment.size,
                    reason=f"begins below offset {next_offset}, where the one before it ends",
                )
            )  # fmt: skip
        positions, next_offset = _verify_segment(segment, report, progress)
        _verify_index(segment, positions, report)
    report.end_offset = next_offset
    saved = checkpoint.load(directory)
    if saved is not None:
        report.start_offset = max(report.start_offset, saved.log_start_offset)
        point = saved.start_point()
        for segment in _segments(directory):
            if segment.base_offset == point.segment and segment.size < point.byte:
                report.problems.append(
                    Problem(
                        path=segment.path, position=segment.size, end=point.byte,
                        reason=f"the file was {point.byte} bytes long when it was last noted",
                    )
                )  # fmt: skip
    return report


def _segments(directory: str) -> list[Segment]:
    return list_segments(directory, OpenFiles(1))


def _verify_segment(
    segment: Segment, report: Report, progress: Progress | None
) -> tuple[dict[int, int], int]:
    """Positions of the sound batches, by base offset, and the offset behind the last."""
    positions: dict[int, int] = {}
    next_offset = segment.base_offset
    for found in scan(segment.path, next_offset=segment.base_offset):
        if isinstance(found, Damage):
            size = found.end - found.position
            report.problems.append(
                Problem(
                    path=segment.path, position=found.position, end=found.end,
                    reason=found.reason, is_torn_tail=found.is_torn_tail,
                )
            )  # fmt: skip
        else:
            size = found.header.size_bytes
            report.batches += 1
            report.records += found.header.record_count
            positions[found.header.base_offset] = found.position
            next_offset = found.header.last_offset + 1
        if progress is not None:
            progress(size)
    return positions, next_offset


def _verify_index(segment: Segment, positions: dict[int, int], report: Report) -> None:
    path = segment.path.removesuffix(LOG_SUFFIX) + ".index"
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return  # made anew when it is needed
    whole = len(data) // OFFSET_ENTRY.size
    for i in range(whole):
        relative, position = OFFSET_ENTRY.unpack_from(data, i * OFFSET_ENTRY.size)
        if positions.get(segment.base_offset + relative) != position:
            _index_problem(report, path, i, f"entry {i} points to no batch of that offset")
            return
    if len(data) % OFFSET_ENTRY.size:
        _index_problem(report, path, whole, "it ends inside an entry")


def _index_problem(report: Report, path: str, entry: int, reason: str) -> None:
    position = entry * OFFSET_ENTRY.size
    report.problems.append(
        Problem(path=path, position=position, end=position, reason=reason, is_index=True)
    )


def repair(directory: str, progress: Progress | None = None) -> Report:
    """Mend a partition so that the broker serves it: the report of what was wrong and is mended.

    Damaged ranges are cut out and kept in files of their own; sound batches keep their offsets, so
    readers find a gap where records were lost. Indexes are made anew. Must not run beside a broker.
    """
    report = verify(directory, progress)
    if report.is_sound:
        return report
    saved = checkpoint.load(directory)
    _check_repairable(report)
    for path in sorted({item.path for item in report.problems if not item.is_index}):
        damaged = [
            item for item in report.problems if item.path == path and item.end > item.position
        ]
        report.kept += _cut_out(path, damaged)
    for segment in _segments(directory):
        for path in segment.paths()[1:]:
            if os.path.exists(path):
                os.unlink(path)
    _reopen(directory, saved, report.end_offset)
    if any(not item.is_index for item in report.problems):  # other brokers count on what is lost
        forget_storage_id(os.path.join(directory, os.pardir, os.pardir, OWN_DIRECTORY))
    return report


def _check_repairable(report: Report) -> None:
    for item in report.problems:
        if item.position == 0 and item.reason.startswith("begins below"):
            raise StorageError(
                f"{item.path} {item.reason}; two logs were mixed: move one of the files away"
            )


def _cut_out(path: str, damaged: list[Problem]) -> list[str]:
    """Rewrite a segment without these ranges, in one step; the files that hold them now."""
    stem = path.removesuffix(LOG_SUFFIX)
    kept = []
    with open(path, "rb") as source, open(f"{path}.repaired", "wb") as target:
        size = os.fstat(source.fileno()).st_size
        position = 0
        for item in sorted(damaged, key=lambda found: found.position):
            if item.position >= size:
                continue  # bytes that the file has lost: there is nothing to cut
            _copy(source.fileno(), target.fileno(), position, item.position)
            kept_path = f"{stem}.{item.position}.damaged"
            with open(kept_path, "wb") as aside:
                _copy(source.fileno(), aside.fileno(), item.position, item.end)
                os.fsync(aside.fileno())
            kept.append(kept_path)
            position = item.end
        _copy(source.fileno(), target.fileno(), position, size)
        os.fsync(target.fileno())
    os.replace(f"{path}.repaired", path)
    checkpoint.sync_directory(os.path.dirname(path))
    return kept


def _copy(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        data = os.pread(source, min(_COPY_BYTES, end - start), start)
        if not data:
            return
        start += os.write(target, data)


def _reopen(directory: str, saved: checkpoint.Checkpoint | None, end_offset: int) -> None:
    """Scan the mended log once, and write the recovery point that spares the broker doing it."""
    checkpoint_path = os.path.join(directory, checkpoint.FILE_NAME)
    if os.path.exists(checkpoint_path):
        os.unlink(checkpoint_path)
    if saved is not None:
        end_offset = max(end_offset, saved.written.offset)
    _reserve_offsets(directory, end_offset)
    try:
        log = PartitionLog(directory, TopicConfig())
    except CorruptLogError as error:
        raise StorageError(f"the log is still damaged after the repair: {error}") from error
    if saved is not None:
        log.log_start_offset = min(max(log.log_start_offset, saved.log_start_offset), end_offset)
    log.close(force_checkpoint=True)


def _reserve_offsets(directory: str, end_offset: int) -> None:
    """Records that were lost from the end leave their offsets unused: the next go behind them."""
    next_offset = 0
    for segment in _segments(directory):
        next_offset = segment.base_offset
        for found in scan(segment.path, next_offset=segment.base_offset):
            if isinstance(found, ScannedBatch):
                next_offset = found.header.last_offset + 1
    if next_offset < end_offset:
        path = os.path.join(directory, f"{end_offset:020d}{LOG_SUFFIX}")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
