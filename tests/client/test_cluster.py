"""Topics, offsets, sizes and groups, as the bulk client asks for them."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer

from penstock.client.cluster import EARLIEST, LATEST, Cluster
from penstock.client.connection import Address, Connection, parse_bootstrap
from penstock.client.errors import (
    BadAnswer,
    BrokerError,
    BrokerUnreachable,
    OffsetOutOfRange,
    RetriesExhausted,
    UnknownTopic,
)
from penstock.errors import ConfigError, ErrorCode, PenstockError
from penstock.model import TopicPartition
from penstock.processes.ports import free_port
from penstock.testing import ThreadBroker
from penstock.testing.brokers import broker_process
from tests.client.support import delete_before, eventually, fill

NOWHERE = "127.0.0.1:1"


def test_topics_are_listed_and_counted_and_never_created(
    cluster: Cluster, penstock_shared: ThreadBroker
) -> None:
    topic = penstock_shared.create_topic(partitions=3)
    missing = f"missing-{uuid.uuid4().hex}"
    assert cluster.partitions([topic, missing, "no topic!"]) == {
        topic: 3,
        missing: None,
        "no topic!": None,
    }
    names = cluster.topics()
    assert topic in names
    assert missing not in names
    assert names == sorted(names)
    assert cluster.partitions([]) == {}


def test_offsets_are_the_ends_of_the_log_or_found_by_time(
    cluster: Cluster, penstock_shared: ThreadBroker
) -> None:
    topic = penstock_shared.create_topic(partitions=2)
    full, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(cluster, full, 300)
    delete_before(penstock_shared, full, 50)
    assert cluster.offsets({full: EARLIEST, empty: EARLIEST}) == {full: 50, empty: 0}
    assert cluster.offsets({full: LATEST, empty: LATEST}) == {full: 300, empty: 0}
    assert cluster.offsets({full: LATEST}, committed=True) == {full: 300}
    # Record n has the timestamp 1_000_000 + n.
    assert cluster.offsets({full: 1_000_123, empty: 5}) == {full: 123, empty: None}
    assert cluster.offsets({full: 2_000_000}) == {full: None}
    assert cluster.offsets({}) == {}


def test_offsets_of_what_is_not_there_is_an_error_that_says_so(
    cluster: Cluster, penstock_shared: ThreadBroker
) -> None:
    topic = penstock_shared.create_topic(partitions=2)
    with pytest.raises(UnknownTopic, match="there is no topic 'nope'") as caught:
        cluster.offsets({TopicPartition("nope", 0): LATEST})
    assert caught.value.code is ErrorCode.unknown_topic_or_partition
    with pytest.raises(UnknownTopic, match="has no partition 7: it has 2"):
        cluster.offsets({TopicPartition(topic, 7): LATEST})


def test_sizes_are_the_bytes_on_disk(cluster: Cluster, penstock_shared: ThreadBroker) -> None:
    topic = penstock_shared.create_topic(partitions=2)
    full, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    fill(cluster, full, 300)
    path = f"{penstock_shared.data_dir}/{topic}/0"
    on_disk = sum(
        os.path.getsize(f"{path}/{name}") for name in os.listdir(path) if name.endswith(".log")
    )
    sizes = cluster.sizes([full, empty, TopicPartition(topic, 9), TopicPartition("nope", 0)])
    assert sizes == {full: on_disk, empty: 0}


def test_a_group_keeps_the_offsets_that_an_outsider_commits(
    cluster: Cluster, penstock_shared: ThreadBroker
) -> None:
    topic = penstock_shared.create_topic(partitions=3)
    first, second, third = (TopicPartition(topic, index) for index in range(3))
    group = f"spark-{uuid.uuid4().hex}"
    assert cluster.committed_offsets(group, [first]) == {}
    cluster.commit_offsets(group, {first: 5, second: 0})
    cluster.commit_offsets(group, {first: 7})
    cluster.commit_offsets(group, {})
    assert cluster.committed_offsets(group, [first, second, third]) == {first: 7, second: 0}
    assert cluster.committed_offsets(group, []) == {}


def test_a_refused_commit_names_group_and_partition(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopic, match=r"offset of nope-0 for group 'g'.*no such topic"):
        cluster.commit_offsets("g", {TopicPartition("nope", 0): 1})


def test_a_commit_into_a_group_with_members_is_refused_with_advice(
    cluster: Cluster, penstock_shared: ThreadBroker
) -> None:
    topic = penstock_shared.create_topic()
    group = f"live-{uuid.uuid4().hex}"
    member = Consumer({"bootstrap.servers": penstock_shared.bootstrap, "group.id": group})
    try:
        member.subscribe([topic])
        eventually(lambda: member.poll(0.1) is not None or bool(member.assignment()))
        with pytest.raises(BrokerError, match="has members of its own") as caught:
            cluster.commit_offsets(group, {TopicPartition(topic, 0): 1})
        assert caught.value.code is ErrorCode.unknown_member_id
    finally:
        member.close()


def test_any_address_that_answers_will_do(penstock_shared: ThreadBroker) -> None:
    topic = penstock_shared.create_topic()
    with Cluster(f"{NOWHERE},{penstock_shared.bootstrap}") as cluster:
        assert cluster.partitions([topic]) == {topic: 1}


def test_no_address_that_answers_is_an_error_that_names_them_in_time() -> None:
    began = time.monotonic()
    with (
        Cluster(f"{NOWHERE}, 127.0.0.1:2", retry_timeout_ms=300) as cluster,
        pytest.raises(RetriesExhausted, match=r"127.0.0.1:1 .*127.0.0.1:2 .*check that") as caught,
    ):
        cluster.topics()
    assert isinstance(caught.value.__cause__, BrokerUnreachable)
    assert time.monotonic() - began < 5


def test_a_name_that_does_not_exist_fails_at_once() -> None:
    began = time.monotonic()
    with Cluster("no-such-host.invalid:9092") as cluster, pytest.raises(BrokerUnreachable):
        cluster.topics()
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("text", ["", " , ", "host:port", "host:0", ":9092", "host:99999"])
def test_addresses_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Cluster(text)


def test_addresses_may_lack_a_port_and_be_of_version_6() -> None:
    assert parse_bootstrap("a, b:1,[::1]:2,[::1],PLAINTEXT://c:3") == [
        Address("a", 9092),
        Address("b", 1),
        Address("::1", 2),
        Address("::1", 9092),
        Address("c", 3),
    ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no Kafka broker"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "TLS"),
        (b"\x00\x00\x00\x02ab", "announced an answer of 2 bytes"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x63abcd", "answered request 99"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00", "cannot be read"),
    ],
)
def test_a_peer_that_is_no_broker_is_told_apart(answer: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(answer)
                peer.recv(1000)

        threading.Thread(target=serve, daemon=True).start()
        with (
            Cluster(f"127.0.0.1:{listener.getsockname()[1]}", request_timeout_ms=5_000) as cluster,
            pytest.raises(BadAnswer, match=words),
        ):
            cluster.topics()


def questions(cluster: Cluster, topic: str) -> list[Callable[[], bool]]:
    """Each way to ask a broker, and whether its answer is right."""
    partition = TopicPartition(topic, 0)
    fill(cluster, partition, 100)
    cluster.commit_offsets("g", {partition: 3})
    return [
        lambda: cluster.partitions([topic]) == {topic: 1},
        lambda: cluster.offsets({partition: LATEST}) == {partition: 100},
        lambda: bool(cluster.sizes([partition])),
        lambda: cluster.committed_offsets("g", [partition]) == {partition: 3},
        lambda: cluster.new_producer_id()[0] >= 0,
        lambda: not cluster.is_compacted(topic),
    ]


def test_a_broker_that_restarts_is_waited_for() -> None:
    with broker_process() as running, Cluster(running.bootstrap) as cluster:
        for ask in questions(cluster, running.create_topic()):
            running.stop()
            starting = threading.Timer(0.3, running.start)
            starting.start()
            assert ask()
            starting.join()


@pytest.mark.parametrize("bootstrap", ["127.0.0.1", "localhost"])
def test_a_broker_whose_name_is_gone_for_a_while_is_waited_for(
    penstock_broker: Callable[..., ThreadBroker], monkeypatch: pytest.MonkeyPatch, bootstrap: str
) -> None:
    port = free_port()
    broker = penstock_broker(addr=f"127.0.0.1:{port}", advertise_addr=f"localhost:{port}")
    is_known = threading.Event()
    is_known.set()
    look_up = socket.getaddrinfo

    def looked_up(host: str, *rest: Any, **named: Any) -> Any:
        if host == "localhost" and not is_known.is_set():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    with Cluster(f"{bootstrap}:{port}") as cluster:
        for ask in questions(cluster, broker.create_topic()):
            cluster.close()  # so that it has to connect, as after a restart
            is_known.clear()
            returning = threading.Timer(0.3, is_known.set)
            returning.start()
            assert ask()
            returning.join()


def test_a_forked_process_has_connections_of_its_own(
    cluster: Cluster, penstock_shared: ThreadBroker
) -> None:
    topic = penstock_shared.create_topic()

    def works() -> bool:
        return all(cluster.partitions([topic]) == {topic: 1} for _ in range(20))

    def connections() -> list[Connection | None]:
        return [shared.connection for shared in cluster.network._shared.values()]

    def works_over_others(before: list[Connection | None]) -> bool:
        return works() and not any(connection in before for connection in connections())

    assert works()
    before = connections()
    assert any(before)
    assert in_a_fork(lambda: works_over_others(before))
    assert works()
    assert connections() == before  # the child has not hung up for us


def in_a_fork(work: Callable[[], bool]) -> bool:
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if work() else 2  # whatever is left open is closed by the system
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def test_a_closed_cluster_connects_again(cluster: Cluster) -> None:
    cluster.topics()
    cluster.close()
    cluster.close()
    cluster.topics()


def test_threads_share_a_cluster(cluster: Cluster, penstock_shared: ThreadBroker) -> None:
    topics = [penstock_shared.create_topic(partitions=count) for count in (1, 2, 3, 4)]
    failures: list[object] = []

    def ask(topic: str, count: int) -> None:
        for _ in range(50):
            found = cluster.partitions([topic])
            if found != {topic: count}:
                failures.append(found)

    threads = [
        threading.Thread(target=ask, args=(topic, count)) for count, topic in enumerate(topics, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_errors_survive_the_way_between_processes() -> None:
    error = OffsetOutOfRange(TopicPartition("orders", 3), 5, 10, 20)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, OffsetOutOfRange)
    assert isinstance(copy, PenstockError)
    assert (copy.partition, copy.asked, copy.log_start, copy.high_watermark) == (
        ("orders", 3),
        5,
        10,
        20,
    )
    assert copy.code is ErrorCode.offset_out_of_range
    assert str(copy) == str(error)
