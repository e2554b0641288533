"""The stream reader: decides how far each batch goes, and notices what is lost. It reads no records.

It lives on the driver as long as its query, in a process of its own; `read` runs in executors. Spark asks
`latestOffset` how far the next batch may go, writes that down in the checkpoint, and then has `partitions`
plan it. A batch that has to be repeated is planned from the checkpoint, so `partitions` trusts nothing but
its arguments and what the brokers say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.client.errors import UnknownTopic
from penstock.model import TopicPartition
from penstock.spark.admission import Admission
from penstock.spark.connecting import ClusterSettings
from penstock.spark.loss import Gap, GapReports
from penstock.spark.offsets import Offsets, from_json, initial_of, starting_position, to_json
from penstock.spark.options import Options
from penstock.spark.planning import Range, Sizes, SplitRules, split
from penstock.spark.progress import Progress, group_name
from penstock.spark.reading import ReadSettings, Split, read_split
from penstock.spark.schema import check_read_schema
from penstock.spark.subscription import Resolver, Subscription
from penstock.spark.worker import Travels

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.cluster import Cluster

log: Final = logging.getLogger("penstock.spark")


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
        self._initial: Offsets | None = (
            None  # where the query began, until its first batch is planned
        )
        self._seen: Offsets = {}  # the ends of logs when last looked at
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

    # Where a batch begins and ends

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        partitions = self._subscription.existing_partitions(self._cluster)
        offsets = self._resolver.resolve(self._position, partitions, "starting")
        self._initial = self._within_logs(offsets)
        return to_json(self._initial)

    def _within_logs(self, offsets: Offsets) -> Offsets:
        """The same, moved to the nearest end of the log where it has no such offset: that is data loss."""
        earliest, latest = self._resolver.earliest(offsets), self._resolver.latest(offsets)
        for one, offset in offsets.items():
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
        self._target = self._ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return to_json(self._seen) or None

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """How far the next batch goes. The same as `start`, to the letter, if there is none."""
        begin = from_json(start)
        ends = self._ends() if self._target is None else self._targets()
        # Spark runs one batch at a time, so all before the start of the next one is done. It calls
        # `commit` later than this: not before there is more to read.
        self._commit({one: at for one, at in begin.items() if one in ends})
        self._report_deleted(begin, ends)
        self._report_remade(begin, ends)
        first = self._resolver.earliest(ends)
        starts = {one: self._start_of(one, begin, ends[one], first[one]) for one in ends}
        if self._gaps.fail:  # before the batch is written down, where it would fail again and again
            self._report_trimmed(begin, ends, first)
        self._seen = dict(ends)
        wait = self._target is None
        end = self._admission.end_of_batch(starts, ends, limit, may_wait=wait)
        if end is None or end == begin:
            return start
        is_first = self._initial is not None and begin == self._initial
        return to_json(end, self._initial if is_first else None)

    def _ends(self) -> Offsets:
        """The ends of all logs that are there now. A topic that vanishes while we look is not there."""
        for _ in range(3):
            partitions, _ = self._subscription.partitions(self._cluster)
            try:
                return self._resolver.latest(partitions)
            except UnknownTopic:
                continue
        return self._resolver.latest(self._subscription.partitions(self._cluster)[0])

    def _targets(self) -> Offsets:
        """Where an AvailableNow query ends, in the partitions that are still there."""
        assert self._target is not None
        there, _ = self._subscription.partitions(self._cluster)
        return {one: self._target[one] for one in there if one in self._target}

    @staticmethod
    def _start_of(one: TopicPartition, begin: Offsets, end: int, first: int) -> int:
        """Where a batch reads on: where the last one ended, if that is still in the log.

        A partition that is new is read from its first record, and so is one whose log ends before the
        place where we were: it is another log by now.
        """
        at = begin.get(one)
        return first if at is None or at > end else min(max(at, first), end)

    # What is lost

    def _report_deleted(self, begin: Offsets, ends: Offsets) -> None:
        for one in sorted(begin.keys() - ends.keys()):
            seen = self._seen.get(one)
            if seen is not None and seen <= begin[one]:
                log.info("%s was deleted; all that was seen of it has been read", one)
                continue
            self._gaps.report(Gap(one, begin[one], seen, "the topic or partition was deleted"))

    def _report_remade(self, begin: Offsets, ends: Offsets) -> None:
        """Logs that end before the place where we were: they are other logs by now."""
        for one in sorted(begin.keys() & ends.keys()):
            at = begin[one]
            if at <= ends[one]:
                continue
            seen = self._seen.get(one)
            if seen is not None and seen <= at:
                log.info("%s was made anew; all that was seen of it has been read", one)
                continue
            reason = f"the log ends at {ends[one]}: it was deleted and made anew, or cut back"
            self._gaps.report(Gap(one, at, seen, reason))

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
        there, _ = self._subscription.partitions(self._cluster)
        known = [one for one in ends if one in set(there)]
        for one in sorted(ends.keys() - set(known)):
            self._gaps.report(
                Gap(one, begin.get(one, 0), ends[one], "the topic or partition was deleted")
            )
        first, last = self._resolver.earliest(known), self._resolver.latest(known)
        planned = {one: ends[one] for one in known}
        self._report_remade(begin, planned)
        self._report_trimmed(begin, planned, first)
        ranges = []
        for one in known:
            at = self._start_of(one, begin, ends[one], first[one])
            to = ends[one]
            if to > last[one]:
                reason = f"the log ends at {last[one]}: it was deleted and made anew, or cut back"
                self._gaps.report(Gap(one, max(at, last[one]), to, reason))
                to = last[one]
            ranges.append(Range(one, at, max(at, to)))
        per_offset = self._sizes.bytes_per_offset(self._cluster, first, last)
        return [Split(one) for one in split(ranges, per_offset, self._rules)]

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
