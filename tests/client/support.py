"""What the tests of the client share: records that can be told apart, and a network that fails."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator

from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from penstock.client.cluster import EARLIEST, LATEST, Cluster
from penstock.client.fetching import Fetched, RangeReader
from penstock.client.producing import IdempotentProducer
from penstock.model import TopicPartition
from penstock.records.batch import read_header
from penstock.records.decode import encode_batch, records_of
from penstock.testing import TestBroker
from penstock.testing.proxy import Cut, Proxies, Proxy, proxies

DEADLINE_S = 30.0


def value(number: int, size: int = 20) -> bytes:
    return f"{number:012d}".encode().ljust(size, b".")


def number_of(content: bytes | None) -> int:
    assert content is not None
    return int(content[:12])


def batch(first: int, count: int, *, size: int = 20, codec: int = 0) -> bytearray:
    """Values that count up from `first`."""
    records = [(None, value(number, size)) for number in range(first, first + count)]
    return encode_batch(records, codec=codec, timestamp=1_000_000 + first)


def fill(
    cluster: Cluster,
    partition: TopicPartition,
    records: int,
    *,
    per_batch: int = 100,
    size: int = 20,
    first: int = 0,
) -> None:
    with IdempotentProducer(cluster) as producer:
        for start in range(first, first + records, per_batch):
            producer.send(partition, batch(start, per_batch, size=size), per_batch)


def batches_of(data: memoryview) -> list[bytes]:
    """The batches in a fetched chunk, which must be whole."""
    found, position = [], 0
    while position < len(data):
        end = position + read_header(data, position).size_bytes
        assert end <= len(data), "a torn batch"
        found.append(bytes(data[position:end]))
        position = end
    return found


def records_in(fetched: Fetched, start: int, end: int) -> list[tuple[int, int]]:
    """(offset, number) of the records of the range, as a decoder would give them."""
    return [
        (record.offset, number_of(record.value))
        for item in batches_of(fetched.data)
        for record in records_of(item)
        if start <= record.offset < end
    ]


def read_range(reader: RangeReader, start: int, end: int) -> list[tuple[int, int]]:
    return [pair for fetched in reader for pair in records_in(fetched, start, end)]


def read_all(cluster: Cluster, partition: TopicPartition) -> list[int]:
    """The numbers in the log, in order."""
    start = cluster.offsets({partition: EARLIEST})[partition]
    end = cluster.offsets({partition: LATEST})[partition]
    assert start is not None
    assert end is not None
    reader = RangeReader(cluster, partition, start, end)
    return [number for _, number in read_range(reader, start, end)]


def delete_before(broker: TestBroker, partition: TopicPartition, offset: int) -> None:
    """Move the start of the log, as retention does."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    asked = KafkaPartition(partition.topic, partition.partition, offset)
    for future in admin.delete_records([asked]).values():
        future.result(timeout=15)


def delete_topic(broker: TestBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(timeout=15)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class CuttingProxy:
    """A network before a broker that cuts each connection after a random number of bytes.

    Start it before the broker, whose address is then `target`, and whose `advertise_addr` is `address`.
    `budget` is the range of bytes that a connection may carry, in both directions together; None: all.
    """

    def __init__(self, network: Proxies, seed: int) -> None:
        self._proxy = network.add(Proxy(new_filter=lambda: _Budget(self)))
        self._random = random.Random(seed)
        self.address = self._proxy.address
        self.budget: tuple[int, int] | None = None
        self.cuts = 0

    @property
    def target(self) -> str:
        return self._proxy.target

    @target.setter
    def target(self, address: str) -> None:
        self._proxy.target = address

    def new_budget(self) -> int | None:
        return None if self.budget is None else self._random.randint(*self.budget)


class _Budget:
    """Lets a connection's bytes pass until there were enough."""

    def __init__(self, proxy: CuttingProxy) -> None:
        self._proxy = proxy
        self._left = proxy.new_budget()

    def from_client(self, data: bytes) -> bytes:
        return self._spend(data)

    def from_server(self, data: bytes) -> bytes:
        return self._spend(data)

    def _spend(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        self._left -= len(data)
        if self._left <= 0:
            self._proxy.cuts += 1
            raise Cut(data[: max(0, len(data) + self._left)])
        return data


@contextlib.contextmanager
def cutting_proxy(seed: int) -> Iterator[CuttingProxy]:
    with proxies() as network:
        yield CuttingProxy(network, seed)
