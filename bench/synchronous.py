"""One produce request at a time: `python -m bench.synchronous --port P --topic T --count N`.

A minimal client on a blocking socket: it sends a prepared request (one record of 100 bytes,
acks=1), reads the answer, checks it and goes on. No library stands between the clock and the
broker, and both brokers get the same bytes.
"""

import argparse
import json
import statistics
import time

from bench.wire import Connection, record_batch

_PAYLOAD = b"x" * 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.synchronous", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, required=True)
    arguments = parser.parse_args()
    frame = Connection.produce_frame(arguments.topic, record_batch(_PAYLOAD), 1)
    with Connection(arguments.port) as connection:
        first = connection.produce(frame) + 1
        for expected in range(first, first + arguments.count // 10):
            assert connection.produce(frame) == expected, "an offset is missing or doubled"
        latencies_ns = []
        start_ns = last_ns = time.perf_counter_ns()
        for _ in range(arguments.count):
            offset = connection.produce(frame)
            now_ns = time.perf_counter_ns()
            latencies_ns.append(now_ns - last_ns)
            last_ns = now_ns
    total = 1 + arguments.count // 10 + arguments.count
    assert offset == first - 1 + total - 1, "an offset is missing or doubled"
    median_us = statistics.median(latencies_ns) / 1_000
    rate = arguments.count / (last_ns - start_ns) * 1e9
    print(json.dumps({"messages": total, "per_s": rate, "p50_us": median_us}))


if __name__ == "__main__":
    main()
