"""The librdkafka load tool: `python -m bench.rdkafka produce|consume|latency ...`.

A process of its own, so that neither the harness nor its progress display disturbs the load.
It prints one JSON object. Settings are those of librdkafka's own `rdkafka_performance`, the
same for every broker; what differs from librdkafka's defaults is spelled out below.
"""

import argparse
import ctypes
import json
import os
import time
from ctypes import c_int, c_void_p
from dataclasses import asdict, dataclass

from bench.librdkafka import (
    CONSUMER,
    EVENT_DELIVERY,
    EVENT_ERROR,
    PRODUCER,
    QUEUE_FULL,
    Client,
    Message,
    RdKafkaError,
    describe,
    lib,
    messages_of,
)
from bench.processes import cpu_seconds

_FLUSH_TIMEOUT_MS = 300_000
_SILENCE_S = 10.0
_QUEUED_MESSAGES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a produce or consume run did. `broker_cpu_s` is spent within `seconds`."""

    messages: int
    seconds: float
    broker_cpu_s: float


def produce(arguments: argparse.Namespace) -> Load:
    """Send `messages`, in runs of `chunk` that go round the partitions, as fast as possible."""
    client = Client(
        PRODUCER,
        arguments.topic,
        {
            "bootstrap.servers": arguments.bootstrap,
            "request.required.acks": arguments.acks,
            "queue.buffering.max.messages": "500000",
            "batch.num.messages": str(arguments.batch_messages),
            "delivery.report.only.error": "true",
        },
        EVENT_DELIVERY | EVENT_ERROR,
    )
    batch = messages_of(arguments.size, arguments.chunk)
    start_cpu, start = cpu_seconds(*arguments.broker_pid), time.perf_counter()
    sent = turn = 0
    while sent < arguments.messages:
        count = min(arguments.chunk, arguments.messages - sent)
        send_all(client, turn % arguments.partitions, batch, count)
        sent += count
        turn += 1
    if code := lib.rd_kafka_flush(client.handle, _FLUSH_TIMEOUT_MS):
        raise RdKafkaError(f"flush: {describe(code)}")
    end, end_cpu = time.perf_counter(), cpu_seconds(*arguments.broker_pid)
    client.raise_errors()
    client.close()
    return Load(messages=sent, seconds=end - start, broker_cpu_s=end_cpu - start_cpu)


def send_all(client: Client, partition: int, batch: ctypes.Array[Message], count: int) -> None:
    """Enqueue the first `count` messages, waiting while librdkafka's queue is full."""
    done = 0
    while done < count:
        rest = ctypes.byref(batch, done * ctypes.sizeof(Message))
        done += lib.rd_kafka_produce_batch(client.topic, partition, 0, rest, count - done)
        if done < count:
            if batch[done].err != QUEUE_FULL:
                raise RdKafkaError(describe(batch[done].err))
            client.raise_errors(timeout_ms=1)


def consume(arguments: argparse.Namespace) -> Load:
    """Read every partition from its start, until `messages` have come and no more come.

    librdkafka hands a partition's messages over in the order of their offsets, without gaps;
    so the positions at the end say exactly how many messages came.
    """
    settings = {
        "bootstrap.servers": arguments.bootstrap,
        # Of all partitions: librdkafka counts what waits in the queue that they share.
        "queued.min.messages": str(_QUEUED_MESSAGES),
        # By default a full queue stops the fetching for a whole second.
        "fetch.queue.backoff.ms": "1",
    }
    client = Client(CONSUMER, arguments.topic, settings, EVENT_ERROR)
    queue = lib.rd_kafka_queue_new(client.handle)
    # Called for each message, in C; it writes the timestamp's type to `scratch` and no more.
    callback = ctypes.cast(lib.rd_kafka_message_timestamp, c_void_p)
    scratch = ctypes.byref(c_int())
    start_cpu, start = cpu_seconds(*arguments.broker_pid), time.perf_counter()
    for partition in range(arguments.partitions):
        if lib.rd_kafka_consume_start_queue(client.topic, partition, 0, queue):
            raise RdKafkaError(describe(lib.rd_kafka_last_error()))
    # The count may include an internal notice for each partition, so it ends the clock at most
    # that many messages early.
    seen, last_progress = 0, start
    while seen < arguments.messages:
        if count := lib.rd_kafka_consume_callback_queue(queue, 100, callback, scratch):
            seen, last_progress = seen + count, time.perf_counter()
        elif time.perf_counter() - last_progress > _SILENCE_S:
            break
        client.raise_errors()
    seconds, cpu = last_progress - start, cpu_seconds(*arguments.broker_pid) - start_cpu
    while lib.rd_kafka_consume_callback_queue(queue, 200, callback, scratch):
        pass
    came = sum(client.positions(arguments.partitions))
    if came != arguments.messages:
        raise RdKafkaError(f"{came} messages came instead of {arguments.messages}")
    for partition in range(arguments.partitions):
        lib.rd_kafka_consume_stop(client.topic, partition)
    lib.rd_kafka_queue_destroy(queue)
    client.close()
    return Load(messages=came, seconds=seconds, broker_cpu_s=cpu)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rdkafka", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("produce", "consume", "latency"):
        command = commands.add_parser(name)
        command.add_argument("--bootstrap", required=True)
        command.add_argument("--topic", required=True)
        command.add_argument("--messages", type=int, required=True)
        command.add_argument("--broker-pid", type=int, nargs="+", default=[os.getpid()])
        command.add_argument("--partitions", type=int, default=1)
        if name != "consume":
            command.add_argument("--size", type=int, required=True)
            command.add_argument("--acks", default="1")
        if name == "produce":
            command.add_argument("--chunk", type=int, default=10_000)
            command.add_argument("--batch-messages", type=int, default=10_000)
        if name == "latency":
            command.add_argument("--rate", type=int, required=True)
    arguments = parser.parse_args()
    if arguments.command == "latency":
        # Not above: NumPy comes with threads of its own, which spin for a while beside the load.
        from bench import openloop

        print(json.dumps(asdict(openloop.run(arguments))))
    else:
        run = {"produce": produce, "consume": consume}[arguments.command]
        print(json.dumps(asdict(run(arguments))))


if __name__ == "__main__":
    main()
