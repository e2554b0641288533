"""From a topic to a table, to a view, and back to a topic."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.spark import register

spark = SparkSession.active()
register(spark)

BROKERS = os.environ.get("BROKERS", "localhost:9092")


@dp.table
def orders() -> DataFrame:
    """Every order once, as it came. Each run goes on where the last one ended."""
    records = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", BROKERS)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("groupIdPrefix", "pipeline")
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "id long, country string, amount double")
    return records.select(order.alias("order"), "timestamp").select("order.*", "timestamp")


@dp.materialized_view
def revenue() -> DataFrame:
    """What was ordered in each country."""
    by_country = spark.read.table("orders").groupBy("country")
    return by_country.agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))


dp.create_sink(
    "large_orders", "penstock", {"kafka.bootstrap.servers": BROKERS, "topic": "large-orders"}
)


@dp.append_flow(target="large_orders")
def large_orders_out() -> DataFrame:
    """Orders above 100, for whoever listens to the topic `large-orders`."""
    large = spark.readStream.table("orders").where("amount > 100")
    return large.select(
        f.col("country").alias("key"), f.to_json(f.struct("id", "amount")).alias("value")
    )
