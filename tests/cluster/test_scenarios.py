"""What becomes of records, clients and groups when brokers of a real cluster die, hang and part.

Real broker processes, a real etcd and stock clients. Each test has topics of its own on one cluster
that is whole again for the next.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.cli.adminapi import AdminClient, ConfigResource, NewTopic
from penstock.errors import ErrorCode, PenstockError
from penstock.processes.broker import BrokerProcess
from penstock.processes.inquiry import Inquiry
from penstock.processes.ports import free_port
from penstock.testing.clusters import ClusterBroker, TestCluster, cluster
from tests.chaos.checker import check
from tests.chaos.disks import read_disks
from tests.chaos.history import History, Outcome, Sent, Value
from tests.chaos.settings import CONNECTION
from tests.chaos.workload import read_all
from tests.kafka.batches import make_batch
from tests.kafka.wire import Wire, fetch, only_partition, produce, request

LEASE_S: Final = 2
PATIENCE_S: Final = 30.0


@pytest.fixture(scope="module")
def shared() -> Iterator[TestCluster]:
    with cluster(partitionable=True, lease_ttl_s=LEASE_S, replica_lag_ms_max=2_000) as running:
        yield running


@pytest.fixture
def three(shared: TestCluster) -> Iterator[TestCluster]:
    """Three brokers, and three again afterwards."""
    yield shared
    shared.heal()
    shared.etcd.heal()
    for broker in shared.brokers:
        if broker.running and not broker.responsive:
            broker.resume()
        if not broker.running:
            broker.start(wait=False)
    for broker in shared.brokers:
        broker.wait_ready()
    shared.wait_healthy()


# -- clients --------------------------------------------------------------------------------------


def producer(bootstrap: str, **settings: Any) -> Producer:
    return Producer(
        {**CONNECTION, "bootstrap.servers": bootstrap, "acks": "all", **_dotted(settings)}
    )


def consumer(bootstrap: str, group: str = "reader", **settings: Any) -> Consumer:
    return Consumer(
        {
            **CONNECTION,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            **_dotted(settings),
        }
    )


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


class Delivery:
    """What became of records that were sent."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[bytes, int]] = []
        self.failed: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged.append((message.value(), message.offset()))
        else:
            self.failed.append(error)


def write(client: Producer, topic: str, *values: str, partition: int = 0) -> Delivery:
    """Send these and wait for every answer."""
    delivery = Delivery()
    for value in values:
        client.produce(topic, value=value.encode(), partition=partition, on_delivery=delivery)
    assert client.flush(PATIENCE_S) == 0, "records without an answer"
    return delivery


def write_all(client: Producer, topic: str, *values: str, partition: int = 0) -> None:
    assert not write(client, topic, *values, partition=partition).failed


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}:{number}" for number in range(count)]


def contents(running: TestCluster, topic: str, partition: int = 0) -> list[str]:
    """All values of a partition, as a new consumer finds them."""
    found = read_all(running.bootstrap, topic, partition)
    return [f"{item.value.producer}:{item.value.sequence}" for item in found]


def read_values(client: Consumer, count: int) -> list[str]:
    """The next `count` values for a consumer; fewer if nothing comes for long."""
    found: list[str] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline_s:
        for message in client.consume(count - len(found), timeout=0.2):
            if message.error() is None:
                found.append((message.value() or b"").decode())
    return found


def same_bytes_everywhere(running: TestCluster, topic: str) -> bool:
    """Whether all brokers have a replica of every partition, and all the same."""
    disks = read_disks(running.brokers, topic)
    everywhere = all(len(replicas) == len(running.brokers) for replicas in disks.values())
    return everywhere and not check(History(disks=disks))


def produce_to(broker: ClusterBroker, topic: str, value: str, *, acks: int = -1) -> ErrorCode:
    """What this very broker answers, whoever leads."""
    with Wire(broker.listens_at) as wire:
        return ErrorCode(only_partition(wire.ask(one_record(topic, value, acks=acks))).error_code)


def others_than(running: TestCluster, broker: ClusterBroker) -> str:
    """Where clients find the others."""
    return ",".join(other.address for other in running.brokers if other is not broker)


def one_record(topic: str, value: str, *, acks: int = -1) -> Any:
    return produce(9, topic, {0: make_batch(value.encode())}, acks=acks)


# -- the test plan: sync, failover, recovery, partition, concurrent writers -----------------------


def test_followers_have_what_was_acknowledged_and_consumers_read_it(three: TestCluster) -> None:
    topic = three.create_topic(partitions=3)
    with_answers = producer(three.bootstrap)
    for partition in range(3):
        write_all(with_answers, topic, *numbered("p", 200), partition=partition)
    for partition in range(3):
        assert contents(three, topic, partition) == numbered("p", 200)
    assert same_bytes_everywhere(three, topic)
    with closing(consumer(three.bootstrap)) as reader:
        for partition in range(3):
            ends = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            assert ends == (0, 200), "the high watermark is the end of what is acknowledged"

    def lags() -> list[int]:
        found = []
        for broker in three.brokers:
            with Inquiry(broker.listens_at) as inquiry:
                held = inquiry.replicas()
            found += [item.lag for partition, item in held.items() if partition.topic == topic]
        return found

    assert lags() == [0] * 9


def test_a_dead_leader_is_replaced_with_nothing_lost_and_stock_clients_ride_through(
    three: TestCluster,
) -> None:
    """confluent-kafka, kafka-python and aiokafka, each as it is, before, during and after."""
    topics = {name: three.create_topic() for name in ("confluent", "kafka-python", "aiokafka")}
    old = three.leader_of(topics["confluent"])
    half = threading.Barrier(4, timeout=PATIENCE_S)
    killed = threading.Event()
    riders: dict[str, Callable[[str, str, Callable[[], None]], list[str]]] = {
        "confluent": ride_confluent,
        "kafka-python": ride_kafka_python,
        "aiokafka": ride_aiokafka,
    }
    seen: dict[str, Any] = {}

    def ride(name: str) -> None:
        def between() -> None:
            half.wait()
            killed.wait(PATIENCE_S)

        try:
            seen[name] = riders[name](three.bootstrap, topics[name], between)
        except BaseException as error:
            seen[name] = repr(error)
            half.abort()

    threads = [threading.Thread(target=ride, args=(name,)) for name in riders]
    for thread in threads:
        thread.start()
    half.wait()
    old.kill()
    killed.set()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    for name, topic in topics.items():
        assert seen.get(name) == numbered("r", 200), f"{name} read something else"
        assert contents(three, topic) == numbered("r", 200)
        assert three.leader_of(topic) is not old


def ride_confluent(bootstrap: str, topic: str, between: Callable[[], None]) -> list[str]:
    client = producer(bootstrap, enable_idempotence=True)
    with closing(consumer(bootstrap)) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        write_all(client, topic, *numbered("r", 200)[:100])
        found = read_values(reader, 50)
        between()
        write_all(client, topic, *numbered("r", 200)[100:])
        return found + read_values(reader, 150)


def ride_kafka_python(bootstrap: str, topic: str, between: Callable[[], None]) -> list[str]:
    import kafka

    servers = bootstrap.split(",")
    client = kafka.KafkaProducer(bootstrap_servers=servers, acks="all")
    reader = kafka.KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None,
        consumer_timeout_ms=int(PATIENCE_S * 1000),
    )  # fmt: skip
    with closing(client), closing(reader):
        reader.assign([kafka.TopicPartition(topic, 0)])
        for value in numbered("r", 200)[:100]:
            client.send(topic, value.encode(), partition=0)
        client.flush(PATIENCE_S)
        found = [next(reader).value.decode() for _ in range(50)]
        between()
        sent = [
            client.send(topic, v.encode(), partition=0) for v in numbered("r", 200)[100:]
        ]  # fmt: skip
        for future in sent:
            future.get(PATIENCE_S)
        return found + [next(reader).value.decode() for _ in range(150)]


def ride_aiokafka(bootstrap: str, topic: str, between: Callable[[], None]) -> list[str]:
    async def ride() -> list[str]:
        import aiokafka

        client = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks="all", enable_idempotence=True
        )
        reader = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        )
        await client.start()
        await reader.start()
        try:
            reader.assign([aiokafka.TopicPartition(topic, 0)])
            for value in numbered("r", 200)[:100]:
                await client.send_and_wait(topic, value.encode(), partition=0)
            found = [(await reader.getone()).value.decode() for _ in range(50)]
            await asyncio.to_thread(between)
            async with asyncio.timeout(PATIENCE_S):
                for value in numbered("r", 200)[100:]:
                    await client.send_and_wait(topic, value.encode(), partition=0)
                found += [(await reader.getone()).value.decode() for _ in range(150)]
            return found
        finally:
            await client.stop()
            await reader.stop()

    return asyncio.run(ride())


def test_a_broker_that_comes_back_follows_the_new_leader_and_catches_up(
    three: TestCluster,
) -> None:
    topic = three.create_topic()
    client = producer(three.bootstrap)
    write_all(client, topic, *numbered("a", 100))
    old = three.leader_of(topic)
    before = three.partition(topic)
    old.kill()
    new = three.leader_of(topic, other_than=old)
    write_all(client, topic, *numbered("b", 100))
    old.start()
    three.wait_healthy()
    known = {broker.known().partition(topic, 0) for broker in three.brokers}
    (agreed,) = known  # one leader in one epoch, says everybody
    assert agreed is not None
    assert before is not None
    assert agreed.leader == new.id
    assert agreed.leader_epoch > before.leader_epoch
    assert produce_to(old, topic, "x:0") is ErrorCode.not_leader_or_follower
    three.wait_for(lambda: same_bytes_everywhere(three, topic), "the same bytes everywhere")
    assert contents(three, topic) == numbered("a", 100) + numbered("b", 100)


def test_a_leader_cut_off_from_the_cluster_acknowledges_nothing_and_gives_up_what_it_wrote(
    three: TestCluster,
) -> None:
    topic = three.create_topic(settings={"min.insync.replicas": "2"})
    write_all(producer(three.bootstrap), topic, *numbered("a", 50))
    old = three.leader_of(topic)
    three.isolate(old)  # clients still reach it
    with Wire(old.listens_at) as wire:
        wire.send(one_record(topic, "lost:0"), one_record(topic, "lost:1"))
        answers = [only_partition(wire.receive()).error_code for _ in range(2)]
    assert ErrorCode.none not in answers, "two of three brokers do not have it"
    three.leader_of(topic, other_than=old)
    # A client that knows only the old leader believes it; one that finds others does not.
    write_all(producer(others_than(three, old)), topic, *numbered("b", 50))
    three.heal()
    three.wait_healthy()
    three.wait_for(lambda: same_bytes_everywhere(three, topic), "the same bytes everywhere")
    assert contents(three, topic) == numbered("a", 50) + numbered("b", 50)


def test_a_leader_that_was_replaced_unawares_does_not_deny_what_it_lacks(
    three: TestCluster,
) -> None:
    topic = three.create_topic()
    write_all(producer(three.bootstrap), topic, *numbered("a", 50))
    old = three.leader_of(topic)
    with Wire(old.listens_at) as wire:
        beyond = fetch(12, {topic: {0: 75}})
        assert only_partition(wire.ask(beyond)).error_code is ErrorCode.offset_out_of_range
        three.isolate(old)  # clients still reach it
        three.leader_of(topic, other_than=old)
        write_all(producer(others_than(three, old)), topic, *numbered("b", 50))
        assert only_partition(wire.ask(beyond)).error_code is ErrorCode.not_leader_or_follower
        committed = only_partition(wire.ask(fetch(12, {topic: {0: 0}})))
        assert committed.error_code is ErrorCode.none, "what it has is committed"


def test_a_follower_cut_off_from_its_leader_leaves_the_isr_and_writes_go_on(
    three: TestCluster,
) -> None:
    topic = three.create_topic(settings={"min.insync.replicas": "2"})
    client = producer(three.bootstrap)
    leader = three.leader_of(topic)
    other = three.brokers[(leader.id + 1) % 3]
    three.cut(leader, other)
    write_all(client, topic, *numbered("a", 50))  # answered when the other one is out

    def without_it() -> bool:
        known = three.partition(topic)  # as one of them has heard of it by now
        return known is not None and other.id not in known.isr and known.leader == leader.id

    three.wait_for(without_it, "the same leader, and an ISR without the other one")
    three.heal()
    three.wait_healthy()
    three.wait_for(lambda: same_bytes_everywhere(three, topic), "the same bytes everywhere")


def test_concurrent_writers_have_each_record_once_and_in_order(three: TestCluster) -> None:
    partitions, each = 4, 250
    topic = three.create_topic(partitions=partitions)
    noted: dict[Value, tuple[int, int]] = {}

    def run(name: str) -> None:
        def note(error: KafkaError | None, message: Any) -> None:
            assert error is None, error
            noted[Value.decode(message.value())] = (message.partition(), message.offset())

        client = producer(three.bootstrap, enable_idempotence=True)
        for number in range(each):
            client.produce(
                topic, value=f"{name}:{number}".encode(), partition=number % partitions,
                on_delivery=note,
            )  # fmt: skip
        client.flush(PATIENCE_S)

    threads = [threading.Thread(target=run, args=(f"w{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(noted) == 6 * each
    final = {p: list(read_all(three.bootstrap, topic, p)) for p in range(partitions)}
    assert sum(map(len, final.values())) == 6 * each
    sent = [
        Sent(value, partition, Outcome.ACKNOWLEDGED, offset)
        for value, (partition, offset) in noted.items()
    ]
    disks = read_disks(three.brokers, topic)
    assert check(History(sent=sent, final=final, disks=disks)) == []


# -- what a cluster refuses -----------------------------------------------------------------------


def test_too_few_replicas_in_sync_refuse_writes_until_there_are_enough(three: TestCluster) -> None:
    topic = three.create_topic(settings={"min.insync.replicas": "3"})
    write_all(producer(three.bootstrap), topic, "a:0")
    leader = three.leader_of(topic)
    other = three.brokers[(leader.id + 1) % 3]
    other.kill()
    three.wait_for(lambda: len(three.partition(topic).isr) == 2, "one fewer in sync")  # type: ignore[union-attr]
    assert produce_to(leader, topic, "b:0") is ErrorCode.not_enough_replicas
    assert produce_to(leader, topic, "c:0", acks=1) is ErrorCode.none, "acks=1 asks for no others"
    client = producer(three.bootstrap)
    delivery = Delivery()
    client.produce(topic, value=b"d:0", partition=0, on_delivery=delivery)
    client.poll(0.3)
    assert not delivery.acknowledged
    other.start()
    assert client.flush(PATIENCE_S) == 0
    assert [offset for _, offset in delivery.acknowledged] == [2], "it waited, and was not refused"
    assert contents(three, topic) == ["a:0", "c:0", "d:0"]


def test_a_replica_that_lacks_records_leads_only_if_the_topic_says_so(three: TestCluster) -> None:
    topic = three.create_topic(replicas=2)
    known = three.partition(topic)
    assert known is not None
    leader, other = (three.brokers[id_] for id_ in known.replicas)
    client = producer(three.bootstrap)
    write_all(client, topic, "a:0")
    other.kill()
    write_all(client, topic, "b:0")  # only the leader has it
    leader.kill()
    other.start()
    three.wait_for(
        lambda: (found := three.partition(topic)) is not None and not found.is_led,
        "a partition without a leader",
    )
    assert produce_to(other, topic, "c:0") is not ErrorCode.none
    time.sleep(LEASE_S / 2)  # nothing to be awaited: it must stay like that
    found = three.partition(topic)
    assert found is not None
    assert not found.is_led
    admin = AdminClient({**CONNECTION, "bootstrap.servers": three.bootstrap})
    resource = ConfigResource(
        ConfigResource.Type.TOPIC, topic, {"unclean.leader.election.enable": "true"}
    )
    for done in admin.alter_configs([resource]).values():
        done.result(PATIENCE_S)
    assert three.leader_of(topic) is other
    write_all(client, topic, "d:0")
    leader.start()
    three.wait_healthy()
    assert contents(three, topic) == ["a:0", "d:0"], "what only the old leader had is given up"


def test_a_second_broker_with_the_same_id_does_not_start(
    three: TestCluster, tmp_path: Path
) -> None:
    settings = {
        "broker_id": 1,
        "addr": f"127.0.0.1:{free_port()}",
        "etcd": ",".join(three.etcd.endpoints),
        "lease_ttl_s": LEASE_S,
    }
    second = BrokerProcess(str(tmp_path / "data"), str(tmp_path / "log"), settings)
    with pytest.raises(PenstockError, match=r"broker id 1 is taken by a broker at .*--broker-id"):
        second.start(timeout_s=PATIENCE_S)
    assert three.brokers[1].running
    three.wait_healthy()


# -- leaving and hanging --------------------------------------------------------------------------


def test_a_rolling_restart_fails_no_write_and_hands_over_before_it_stops(
    three: TestCluster,
) -> None:
    topic = three.create_topic(partitions=3, settings={"min.insync.replicas": "2"})
    with writing(three, topic, partitions=3) as delivery:
        for broker in three.brokers:
            broker.terminate()
            led_by = {three.partition(topic, p).leader for p in range(3)}  # type: ignore[union-attr]
            assert broker.id not in led_by
            assert -1 not in led_by, "its lease did not have to end first"
            broker.start()
            three.wait_healthy()
    assert not delivery.failed
    assert len(delivery.acknowledged) > 50
    found = [value for p in range(3) for value in contents(three, topic, p)]
    assert sorted(found) == sorted(value.decode() for value, _ in delivery.acknowledged)


@contextmanager
def writing(running: TestCluster, topic: str, *, partitions: int) -> Iterator[Delivery]:
    """A producer in the background that sends a record every few milliseconds."""
    delivery, stop = Delivery(), threading.Event()

    def run() -> None:
        client = producer(running.bootstrap, enable_idempotence=True)
        number = 0
        while not stop.wait(0.01):
            client.produce(
                topic, value=f"w:{number}".encode(), partition=number % partitions,
                on_delivery=delivery,
            )  # fmt: skip
            client.poll(0)
            number += 1
        client.flush(PATIENCE_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield delivery
    finally:
        stop.set()
        thread.join()


def test_without_etcd_nothing_is_acknowledged_and_reads_go_on_until_it_is_back(
    three: TestCluster,
) -> None:
    topic = three.create_topic()
    write_all(producer(three.bootstrap), topic, *numbered("a", 50))
    leader = three.leader_of(topic)
    for member in three.etcd.members:
        member.pause()
    with Wire(leader.listens_at) as wire:

        def is_silenced() -> bool:
            answer = only_partition(wire.ask(one_record(topic, "b:0", acks=1)))
            return answer.error_code is not ErrorCode.none

        three.wait_for(is_silenced, "a leader without a lease", timeout_s=LEASE_S + 3)
        assert is_silenced()
    assert contents(three, topic)[:50] == numbered("a", 50), "what is committed can be read"
    assert produce_to(leader, topic, "c:0") is not ErrorCode.none
    three.etcd.heal()
    three.wait_healthy()
    write_all(producer(three.bootstrap), topic, "d:0")
    values = contents(three, topic)
    assert values[-1] == "d:0"
    assert "c:0" not in values


def test_a_broker_that_starts_while_etcd_is_away_waits_for_it(three: TestCluster) -> None:
    returning = three.brokers[1]
    returning.kill()
    for member in three.etcd.members:
        member.pause()
    returning.start(wait=False)
    three.wait_for(lambda: "waiting for etcd" in returning.log_text(), "it says so")
    three.etcd.heal()
    returning.wait_ready()


def test_a_leader_that_wakes_up_late_answers_no_write_that_waited_for_it(
    three: TestCluster,
) -> None:
    topic = three.create_topic()
    write_all(producer(three.bootstrap), topic, *numbered("a", 10))
    old = three.leader_of(topic)
    with Wire(old.listens_at) as wire:
        wire.ask(request("metadata", 9, topics=[]))  # the connection is served
        old.pause()
        for number, acks in enumerate((-1, 1)):
            wire.send(one_record(topic, f"late:{number}", acks=acks))
        three.leader_of(topic, other_than=old)
        write_all(producer(others_than(three, old)), topic, *numbered("b", 10))
        old.resume()
        for _ in range(2):
            assert only_partition(wire.receive()).error_code is not ErrorCode.none
    three.wait_healthy()
    assert contents(three, topic) == numbered("a", 10) + numbered("b", 10)


# -- groups and the controller --------------------------------------------------------------------


def test_a_group_moves_with_its_offsets_and_its_fences_when_its_coordinator_dies(
    three: TestCluster,
) -> None:
    topic, group = three.create_topic(), "moves"
    write_all(producer(three.bootstrap), topic, *numbered("a", 100))
    settings = {"session_timeout_ms": 15_000, "auto_offset_reset": "earliest"}
    with closing(consumer(three.bootstrap, group, **settings)) as member:
        member.subscribe([topic])
        assert read_values(member, 40) == numbered("a", 40)
        member.commit(asynchronous=False)
        old = coordinator_of(three, group)
        old.kill()
        assert read_values(member, 60) == numbered("a", 100)[40:], "it need not begin anew"
        commit_at_last(member)
        new = coordinator_of(three, group, other_than=old)
        with closing(consumer(three.bootstrap, group)) as other:
            (found,) = other.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
            assert found.offset == 100
        assert commit_as_stranger(new, group, topic, 7) is ErrorCode.unknown_member_id
        with closing(consumer(three.bootstrap, group)) as other:
            (found,) = other.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
            assert found.offset == 100, "a stranger's commit was taken"


def commit_at_last(member: Consumer) -> None:
    """Commit what was read; a coordinator that is on its way to another broker is waited for."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            member.commit(asynchronous=False)
            return
        except KafkaException:
            assert time.monotonic() < deadline_s, "no commit was taken"
            member.poll(0.1)


def coordinator_of(
    running: TestCluster, group: str, *, other_than: ClusterBroker | None = None
) -> ClusterBroker:
    def found() -> ClusterBroker | None:
        for broker in running.brokers:
            if broker.responsive:
                with Wire(broker.listens_at) as wire:
                    answer = wire.ask(request("find_coordinator", 2, key=group, key_type=0))
                if answer.error_code is ErrorCode.none:
                    it = running.brokers[answer.node_id]
                    return None if it is other_than else it
        return None

    broker: ClusterBroker = running.wait_for(found, f"a coordinator of {group}")
    return broker


def commit_as_stranger(broker: ClusterBroker, group: str, topic: str, offset: int) -> ErrorCode:
    """A commit by somebody who is no member, but says so."""
    partition = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
    with Wire(broker.listens_at) as wire:
        answer = wire.ask(
            request(
                "offset_commit",
                7,
                group_id=group,
                generation_id_or_member_epoch=1,
                member_id="stranger",
                topics=[{"name": topic, "partitions": [partition]}],
            )
        )
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_topics_whose_controller_dies_while_they_are_made_are_whole_afterwards(
    three: TestCluster,
) -> None:
    names = [f"many-{number}" for number in range(30)]
    admin = AdminClient({**CONNECTION, "bootstrap.servers": three.bootstrap})
    wanted = [NewTopic(name, num_partitions=3, replication_factor=2) for name in names]
    controller = three.controller()
    made = admin.create_topics(wanted, operation_timeout=20, request_timeout=25)
    three.wait_for(
        lambda: any(
            item.topic in names for known in three.known().values() for item in known.partitions
        ),
        "the first of many topics",
    )
    controller.kill()
    created = [name for name, done in made.items() if done.exception(PATIENCE_S) is None]
    three.wait_for(lambda: three.controller() is not controller, "another controller")
    controller.start()
    three.wait_healthy()
    client = producer(three.bootstrap)
    known = {item.topic for item in three.brokers[0].known().partitions}
    assert set(created) <= known
    for name in set(names) - known:  # nobody heard of them: they can be made now
        admin.create_topics([NewTopic(name, num_partitions=3)])[name].result(PATIENCE_S)
    delivery = Delivery()
    for name in names:
        for partition in range(3):
            client.produce(name, value=b"x:0", partition=partition, on_delivery=delivery)
    assert client.flush(PATIENCE_S) == 0
    assert not delivery.failed
    assert len(delivery.acknowledged) == 3 * len(names)
