"""The stream reader: decides how far each batch goes, and notices what is lost. It reads no records.

It lives on the driver as long as its query, in a process of its own; `read` runs in executors. Spark asks
`latestOffset` how far the next batch may go, writes that down in the checkpoint, and then has `partitions`
plan it. A batch that has to be repeated is planned from the checkpoint, so `partitions` trusts nothing but
its arguments and what the brokers say.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.model import TopicPartition
from penstock.spark.admission import Admission
from penstock.spark.connecting import ClusterSettings
from penstock.spark.looking import Logs, look
from penstock.spark.loss import Gap, GapReports
from penstock.spark.offsets import (
    Offsets,
    from_json,
    ids_of,
    initial_of,
    starting_position,
    to_json,
)
from penstock.spark.options import Options
from penstock.spark.planning import Range, Sizes, SplitRules, split
from penstock.spark.progress import Progress, group_name
from penstock.spark.reading import ReadSettings, Split, read_split
from penstock.spark.schema import check_read_schema
from penstock.spark.subscription import Resolver, Subscription, named_in
from penstock.spark.worker import Travels

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.cluster import Cluster

log: Final = logging.getLogger("penstock.spark")

_DELETED: Final = "the topic or partition was deleted"
_ANEW: Final = "the topic was deleted and made anew"
_SEEMS_ANEW: Final = f"{_ANEW}, or its log was cut back: it ends before"


class PenstockStreamReader(Travels, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics batch by batch, from where the query began or its checkpoint stands."""

    def __init__(self, options: Options, schema: StructType, app_name: str) -> None:
        check_read_schema(schema)
        self._where = ClusterSettings.from_options(options)
        self._subscription = Subscription.from_options(options)
        self._position = starting_position(options, stream=True)
        self._on_no_match: str = options["startingOffsetsByTimestampStrategy"]
        self._rules = SplitRules.from_options(options)
        self._settings = ReadSettings.from_options(options, schema)
        self._admission = Admission(options)
        self._progress: Progress | None = None
        if options["commitProgress"]:
            name = group_name(options, self._subscription, app_name)
            self._progress = Progress(name, self._where)
        self._gaps = GapReports(fail=self._settings.fail_on_data_loss)
        self._sizes = Sizes()
        # Where the query began, until its first batch is planned.
        self._initial: Offsets | None = None
        self._latest: Offsets = {}  # the ends of logs when last looked at
        # The same of the topics that batches were planned for: one may be gone, or another, by now.
        self._seen: Offsets = {}
        self._ids: dict[str, uuid.UUID] = {}  # of topics, where the checkpoint has none
        self._gone: set[TopicPartition] = set()  # in the checkpoint, and found to be gone for sure
        self._target: Offsets | None = None  # where an AvailableNow query ends
        self._connected: Cluster | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Executors get all but the connection."""
        return {**self.__dict__, "_connected": None}

    @property
    def _cluster(self) -> Cluster:
        if self._connected is None:
            self._connected = self._where.connect()
        return self._connected

    @property
    def _resolver(self) -> Resolver:
        return Resolver(
            self._cluster, committed=self._settings.committed, on_no_match=self._on_no_match
        )

    def _look(self, expected: Offsets, known: Mapping[str, uuid.UUID]) -> Logs:
        return look(self._cluster, self._subscription, self._resolver, expected, known)

    # Where a batch begins and ends

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        partitions = self._subscription.existing_partitions(self._cluster)
        offsets = self._resolver.resolve(self._position, partitions, "starting")
        self._initial = self._within_logs(offsets)
        if self._target is not None:  # Spark asks for that first: a topic may have grown since
            self._target |= {
                one: max(at, self._target.get(one, at)) for one, at in self._initial.items()
            }
        ids = self._cluster.topic_ids({one.topic for one in partitions})
        return to_json(self._initial, ids=ids, initial=self._initial)

    def _within_logs(self, offsets: Offsets) -> Offsets:
        """The same, moved to the nearest end of the log where it has no such offset.

        That is data loss where the user named the offset. `earliest` was right when it was asked for.
        """
        earliest, latest = self._resolver.earliest(offsets), self._resolver.latest(offsets)
        for one in named_in(self._position):
            offset = offsets[one]
            if offset < earliest[one]:
                reason = f"the log begins at {earliest[one]}"
                self._gaps.report(Gap(one, offset, earliest[one], reason))
            elif offset > latest[one]:
                reason = f"the log ends at {latest[one]}; see startingOffsets"
                self._gaps.report(Gap(one, latest[one], offset, reason))
        return {one: min(max(at, earliest[one]), latest[one]) for one, at in offsets.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return self._admission.default_limit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = dict(self._look({}, {}).ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return to_json(self._latest) or None

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """How far the next batch goes. The same as `start`, to the letter, if there is none."""
        before = from_json(start)
        known = {**self._ids, **ids_of(start)}
        logs = self._look({one: at for one, at in before.items() if one not in self._gone}, known)
        self._latest = dict(logs.ends)
        self._gone = before.keys() - logs.ends.keys()
        anew = logs.made_anew(known) | _seem_anew(before, known, logs)
        reasons = dict.fromkeys(self._gone, _DELETED)
        reasons |= {one: _ANEW if one.topic in known else _SEEMS_ANEW for one in anew}
        self._report_left(before, reasons)
        begin = {**before, **{one: logs.first[one] for one in anew}}
        # Spark runs one batch at a time, so all before the start of the next one is done. It calls
        # `commit` later than this: not before there is more to read.
        self._commit({one: at for one, at in begin.items() if one in logs.ends})
        self._report_cut_back(begin, logs)
        if self._gaps.fail:  # before the batch is written down, where it would fail again and again
            self._report_trimmed(begin, logs.ends, logs.first)
        self._seen |= {one: end for one, end in logs.ends.items() if one not in anew}
        self._ids = {**logs.ids, **self._ids}
        ends = self._ends_of_batches(begin, logs)
        starts = {one: _start_of(begin.get(one), logs.first[one], ends[one]) for one in ends}
        wait = self._target is None
        end = self._admission.end_of_batch(starts, ends, limit, may_wait=wait)
        if end is None or (end == before and not anew):
            return start
        self._seen, self._ids = dict(logs.ends), dict(logs.ids)
        is_first = self._initial is not None and begin == self._initial
        return to_json(end, ids=logs.ids, initial=begin if anew or is_first else None)

    def _ends_of_batches(self, begin: Offsets, logs: Logs) -> Offsets:
        """Where the logs end for us: an AvailableNow query goes no further than they did at its start.

        Nor does it go back: who told where they ended may not have known.
        """
        if self._target is None:
            return logs.ends
        ends = {}
        for one, end in logs.ends.items():
            at = begin.get(one)
            target = self._target.get(one, at)
            if target is not None:
                ends[one] = min(target if at is None else max(target, at), end)
        return ends

    # What is lost

    def _report_left(self, begin: Offsets, reasons: Mapping[TopicPartition, str]) -> None:
        """What was left to read of logs that are gone for these reasons, if anything was."""
        for one in sorted(begin.keys() & reasons.keys()):
            seen = self._seen.get(one)
            if seen is not None and seen <= begin[one]:
                log.info("%s: %s; all that was seen of it has been read", one, reasons[one])
                continue
            self._gaps.report(Gap(one, begin[one], seen, reasons[one]))

    def _report_cut_back(self, begin: Offsets, logs: Logs) -> None:
        """Logs that end before the place where we are: what was there is lost, or there twice."""
        for one in sorted(begin.keys() & logs.ends.keys()):
            end = logs.ends[one]
            if begin[one] > end:
                reason = (
                    f"the log ends at {end}: it was cut back, by a crash or an election of a replica that"
                    " was not in sync; the query goes on at its end"
                )
                self._gaps.report(Gap(one, end, begin[one], reason))

    def _report_trimmed(self, begin: Offsets, ends: Offsets, first: Offsets) -> None:
        """Logs that begin behind the place where we were."""
        known_topics = {one.topic for one in begin}
        for one in sorted(ends):
            at = begin.get(one)
            lost_to = min(first[one], ends[one])
            if at is None:
                # A new topic owes us nothing; a new partition of one that we read does.
                if one.topic in known_topics and first[one] > 0:
                    reason = f"it is a new partition, and its log begins at {first[one]} already"
                    self._gaps.report(Gap(one, 0, first[one], reason))
            elif at < lost_to:
                reason = f"the log begins at {first[one]} (retention, or records deleted)"
                self._gaps.report(Gap(one, at, lost_to, reason))

    # Planning

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        initial = initial_of(end)
        begin = from_json(start) if initial is None else initial
        ends = from_json(end)
        logs = self._look(ends, ids_of(end))
        gone = dict.fromkeys(ends.keys() - logs.ends.keys(), _DELETED)
        gone |= dict.fromkeys(logs.made_anew(ids_of(end)), _ANEW)
        for one in sorted(gone.keys() & ends.keys()):
            if begin.get(one, 0) < ends[one]:
                self._gaps.report(Gap(one, begin.get(one, 0), ends[one], gone[one]))
        known = {one: at for one, at in ends.items() if one not in gone}
        self._report_trimmed(begin, known, logs.first)
        ranges = [self._range(one, begin.get(one), to, logs) for one, to in known.items()]
        per_offset = self._sizes.bytes_per_offset(self._cluster, logs.first, logs.ends)
        return [Split(one) for one in split(ranges, per_offset, self._rules)]

    def _range(self, one: TopicPartition, at: int | None, to: int, logs: Logs) -> Range:
        """What a batch that was to end at `to` has to read of a partition."""
        first, last = logs.first[one], logs.ends[one]
        begin = _start_of(at, first, to)
        if to > last:
            reason = f"the log ends at {last}: it was cut back, by a crash or an unclean election"
            self._gaps.report(Gap(one, max(begin, last), to, reason))
        return Range(one, begin, max(begin, min(to, last)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return read_split(self._where, self._settings, partition)

    # What is done

    def commit(self, end: dict[str, Any]) -> None:
        self._commit(from_json(end))

    def _commit(self, offsets: Offsets) -> None:
        if self._progress is not None:
            self._progress.commit(offsets)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.close()
        if self._connected is not None:
            self._connected.close()


def _seem_anew(before: Offsets, known: Mapping[str, uuid.UUID], logs: Logs) -> set[TopicPartition]:
    """Partitions that end before our place, of topics whose id nobody noted: as if they were made anew.

    So are offsets that the connector wrote. Where it is wrong, records are read twice and not lost.
    """
    return {
        one
        for one, at in before.items()
        if one in logs.ends and at > logs.ends[one] and one.topic not in known
    }


def _start_of(at: int | None, first: int, end: int) -> int:
    """Where a batch up to `end` reads on: at its place, if that is still in the log.

    A partition that is new is read from its first record; of a log that was cut back, only what comes.
    """
    return min(max(first if at is None else at, first), end)
