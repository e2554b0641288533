"""A job in Spark Connect, in a process of its own: a process has either kind of session, not both.

    python -m tests.spark.connect_job BOOTSTRAP SOURCE TARGET CHECKPOINT

Copies what is in the topic SOURCE to the topic TARGET twice: once as a batch, once as a stream.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from penstock.spark import register
from penstock.spark.java import ensure_java


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    ensure_java()
    spark = SparkSession.builder.remote("local[2]").appName("connected").getOrCreate()
    register(spark)
    brokers = {"kafka.bootstrap.servers": bootstrap}
    reading = {"subscribe": source, "startingOffsets": "earliest", **brokers}
    batch = spark.read.format("penstock").options(**reading).load()
    chosen = batch.filter("partition = 0 and offset >= 5").select("value")
    chosen.write.format("penstock").mode("append").options(topic=target, **brokers).save()
    stream = spark.readStream.format("penstock").options(**reading).load()
    query = (
        stream.select("value")
        .writeStream.format("penstock")
        .options(topic=target, checkpointLocation=checkpoint, **brokers)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
