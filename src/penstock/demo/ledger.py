"""The books of the demo: every record that was sent is somewhere, once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.demo.names import ORDERS, PER_MINUTE, REJECTED

if TYPE_CHECKING:
    from penstock.demo.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Counts from parties that know nothing of each other."""

    sent: int  # the feed: acknowledged by the broker, the closing record among them
    unacknowledged: int  # the feed
    stored: int  # the broker: offsets of the topic
    in_table: int  # the Parquet files
    duplicates: int  # Spark: dropped for an order_id it had seen
    too_late: int  # Spark: dropped for a time behind the watermark
    rejected: int  # the broker: offsets of the topic of rejected records
    closing: int = 1  # in the window that it opened, which nothing closes

    @classmethod
    def of(cls, watch: Watch, rows: list[dict[str, Any]]) -> Ledger:
        query = watch.job.queries[PER_MINUTE]
        return cls(
            sent=watch.feed.acknowledged,
            unacknowledged=watch.feed.failed,
            stored=watch.records[ORDERS],
            in_table=sum(row["orders"] for row in rows),
            duplicates=query.duplicates,
            too_late=query.too_late,
            rejected=watch.records[REJECTED],
        )

    @property
    def accounted(self) -> int:
        return self.in_table + self.duplicates + self.too_late + self.rejected + self.closing

    @property
    def is_balanced(self) -> bool:
        return self.sent == self.stored == self.accounted and self.unacknowledged == 0

    def report(self) -> dict[str, int | bool]:
        """With the field names of `--json`."""
        return {**asdict(self), "accounted": self.accounted, "balanced": self.is_balanced}
