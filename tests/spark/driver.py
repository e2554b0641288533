"""A driver program that tests kill: a stream from a topic into a Parquet table, some records at a time.

python driver.py BOOTSTRAP TOPIC TABLE CHECKPOINT
"""

from __future__ import annotations

import sys

from penstock.spark import register
from penstock.spark.java import ensure_java
from tests.spark.harness import session_builder


def main(bootstrap: str, topic: str, table: str, checkpoint: str) -> None:
    ensure_java()
    spark = session_builder("killed").getOrCreate()
    register(spark)
    query = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "16000")
        .load()
        .selectExpr("cast(value as string) as value", "partition", "offset")
        .writeStream.format("parquet")
        .option("path", table)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
