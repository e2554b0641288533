"""The Spark job of the demo: orders in; out come a table of each minute's sales and rejected orders.

This is the part to read and to copy from. It knows nothing of the demo around it and needs a
session in which `penstock.spark.register` was called:

    orders ──▶ parse ──▶ drop duplicates ──▶ sum up by minute and country ──▶ Parquet table
                 │                                                        └─▶ topic orders-per-minute
                 └─ what is no order ──▶ topic orders-rejected

Nothing is lost or doubled: Spark's checkpoint says what was read, a batch that has to be repeated replaces
its own part of the table, and each order counts once however often it was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from penstock.demo.names import ORDERS, PER_MINUTE, REJECTED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ORDER: Final = """
    order_id STRING, at TIMESTAMP, customer STRING, country STRING, product STRING, quantity INT,
    amount DECIMAL(10, 2)
"""
LATEST_BY: Final = (
    "10 minutes"  # an order that comes later than this after the others is not counted
)
OFFSETS_MAX: Final = 100_000  # in one batch: after a long stop, progress is seen step by step


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the job reads, writes, and keeps what it needs to go on after a crash."""

    bootstrap: str
    table: str
    checkpoints: str


def start_per_minute(spark: SparkSession, places: Places) -> StreamingQuery:
    """Count each minute's orders by country, each order once; it runs until it is stopped."""
    orders = read_orders(spark, places, group=PER_MINUTE).where(rejection().isNull())
    per_minute = (
        orders.withWatermark("at", LATEST_BY)
        .dropDuplicatesWithinWatermark(["order_id"])
        .groupBy(F.window("at", "1 minute"), "country")
        .agg(
            F.count("*").alias("orders"),
            F.sum("quantity").alias("items"),
            F.sum("amount").alias("revenue"),
        )
        .select(F.col("window.start").alias("minute"), "country", "orders", "items", "revenue")
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        """To the table and to the topic. Repeated after a crash, it writes the same files again."""
        batch = batch.repartition(1).sortWithinPartitions("minute", "country").persist()
        if not batch.isEmpty():
            batch.write.mode("overwrite").parquet(f"{places.table}/batch={batch_id}")
            records = batch.select(
                F.col("country").alias("key"), F.to_json(F.struct("*")).alias("value")
            )
            to_topic = records.write.format("penstock").mode("append")
            to_topic.option("kafka.bootstrap.servers", places.bootstrap).option(
                "topic", PER_MINUTE
            ).save()
        batch.unpersist()

    return (
        per_minute.writeStream.queryName(PER_MINUTE)
        .outputMode("append")  # a minute is written once, when no order can come late for it
        .foreachBatch(write)
        .option("checkpointLocation", f"{places.checkpoints}/{PER_MINUTE}")
        .trigger(processingTime="1 second")
        .start()
    )


def start_rejected(spark: SparkSession, places: Places) -> StreamingQuery:
    """Send what is no order to a topic of its own, with the reason in a header."""
    reason = F.struct(F.lit("reason").alias("key"), rejection().cast("binary").alias("value"))
    rejected = (
        read_orders(spark, places, group=REJECTED)
        .where(rejection().isNotNull())
        .select("key", "value", F.array(reason).alias("headers"))
    )
    return (
        rejected.writeStream.queryName(REJECTED)
        .format("penstock")
        .option("kafka.bootstrap.servers", places.bootstrap)
        .option("topic", REJECTED)
        .option("checkpointLocation", f"{places.checkpoints}/{REJECTED}")
        .trigger(processingTime="4 seconds")
        .start()
    )


def read_orders(spark: SparkSession, places: Places, *, group: str) -> DataFrame:
    """The topic as it grows, an order's fields as columns; they are null where the JSON is no order."""
    parsed = F.from_json(F.col("value").cast("string"), ORDER)
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", places.bootstrap)
        .option("subscribe", ORDERS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", OFFSETS_MAX)
        .option("kafka.group.id", group)  # where `penstock group describe` shows the lag
        .load()
        # Without `inline`, Spark would parse the JSON anew for each field that a filter asks for.
        .select("key", "value", F.inline(F.array(parsed)))
    )


def rejection() -> Column:
    """Why a record is no order; null if it is one."""
    return (
        F.when(F.col("order_id").isNull(), "no JSON, or no order_id in it")
        .when(F.col("at").isNull(), "no time")
        .when(F.col("country").isNull(), "no country")
        .when(F.col("amount").isNull() | (F.col("amount") <= 0), "no amount above zero")
    )
