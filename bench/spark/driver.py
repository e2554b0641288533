"""The Spark driver of the benchmark: `python -m bench.spark.driver PLAN`, a process of its own.

Reads a plan (JSON), runs it in one session that has both data sources, and prints one JSON line for
each figure.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from bench import processes
from bench.spark.cases import WRITING_CASES, Runner, Workload
from bench.spark.ceiling import CeilingDataSource
from penstock.spark import register


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    plan = json.loads(Path(sys.argv[1]).read_text())
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in plan["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    spark.dataSource.register(CeilingDataSource)
    runner = Runner(spark, plan["bootstraps"], Path(plan["directory"]))
    small = Workload(**plan["warm_up"])
    for case, variants in plan["turns"].items():
        for variant in variants:
            runner.run(case, variant, small)
    for case, variants in plan["turns"].items():
        for load in (Workload(**fields) for fields in plan["workloads"]):
            for number in range(plan["rounds"]):
                for variant in variants[:: -1 if number % 2 else 1]:
                    processes.settle(load.log_bytes if case in WRITING_CASES else 0)
                    if variant in plan["data"]:
                        segments = Path(plan["data"][variant]).glob(f"{load.topic}*/**/*.log")
                        processes.bring_in(segments)
                    rate = runner.run(case, variant, load)
                    figure = {"key": f"{case}_{load.topic}", "variant": variant, "rate": rate}
                    print(json.dumps(figure), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
