"""`kill -9` under load, again and again, and a count of what is there afterwards."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.testing import ProcessBroker, broker_process
from tests.crash.writers import Committer, Watcher, Writer, end_offset, read_all

PARTITIONS = 4


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run wrote and lived through."""

    rounds: int
    records: int
    acknowledged: int
    commits: int


def run(rounds: int, seed: int, on_round: Callable[[int], None] | None = None) -> Outcome:
    """Kill a broker `rounds` times under load; `AssertionError` if a promise was broken."""
    chance = random.Random(seed)
    with broker_process() as broker:
        topic = broker.create_topic(partitions=PARTITIONS, settings={"segment.bytes": "1000000"})
        writers = [
            _writer(broker, topic, 0, "idempotent-all", acks="all", idempotent=True),
            _writer(broker, topic, 1, "idempotent-all-2", acks="all", idempotent=True),
            _writer(broker, topic, 1, "plain-1", acks="1", idempotent=False),
            _writer(broker, topic, 2, "plain-1-2", acks="1", idempotent=False),
            _writer(broker, topic, 3, "plain-all", acks="all", idempotent=False),
        ]
        committer = Committer(bootstrap=broker.bootstrap, topic=topic, group="crash")
        watcher = Watcher(bootstrap=broker.bootstrap, topic=topic, partitions=(1, 2))
        stop = threading.Event()
        jobs = [*(writer.run for writer in writers), committer.run, watcher.run]
        workers = [threading.Thread(target=job, args=(stop,)) for job in jobs]
        for worker in workers:
            worker.start()
        try:
            for number in range(rounds):
                for writer in writers:
                    writer.wait_for_an_answer()
                stop.wait(chance.uniform(0, 0.2))  # when the blow falls; nothing is waited for
                broker.kill()
                broker.start()
                if on_round is not None:
                    on_round(number + 1)
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        return _count(broker, topic, writers, committer, watcher, rounds)


def _writer(
    broker: ProcessBroker, topic: str, partition: int, name: str, *, acks: str, idempotent: bool
) -> Writer:
    return Writer(
        name=name, bootstrap=broker.bootstrap, topic=topic, partition=partition,
        acks=acks, idempotent=idempotent,
    )  # fmt: skip


def _count(
    broker: ProcessBroker,
    topic: str,
    writers: list[Writer],
    committer: Committer,
    watcher: Watcher,
    rounds: int,
) -> Outcome:
    broker.kill()  # once more: what was answered last counts, too
    broker.start()
    records = 0
    for partition in range(PARTITIONS):
        end = end_offset(broker.bootstrap, topic, partition)
        found = read_all(broker.bootstrap, topic, partition, end)
        assert [offset for offset, _ in found] == list(range(end)), "offsets have gaps or repeat"
        records += end
        values = dict(found)
        for (at, offset), value in watcher.seen.items():
            if at == partition:
                assert values.get(offset) == value, f"offset {offset} was read as {value!r} before"
        for writer in writers:
            if writer.partition == partition:
                _check_writer(writer, [value.decode() for _, value in found], values)
    assert not watcher.failures, watcher.failures[:3]
    assert watcher.seen, "nobody read anything"
    stored = committer.committed()
    assert committer.answered <= stored <= committer.asked, (
        f"commit {committer.answered} was answered, {stored} is there"
    )
    assert "Traceback" not in broker.log_text, broker.log_text
    return Outcome(
        rounds=rounds,
        records=records,
        acknowledged=sum(len(writer.acknowledged) for writer in writers),
        commits=committer.answered + 1,
    )


def _check_writer(writer: Writer, in_log: list[str], by_offset: dict[int, bytes]) -> None:
    prefix = f"{writer.name}:"
    numbers = [int(value[len(prefix) :]) for value in in_log if value.startswith(prefix)]
    assert not writer.failures, writer.failures[:3]
    assert writer.acknowledged, f"{writer.name} got nothing through"
    missing = writer.acknowledged.keys() - set(numbers)
    assert not missing, f"{writer.name} lost {len(missing)} acknowledged records: {min(missing)}…"
    if writer.idempotent:
        assert numbers == list(range(writer.sent)), f"{writer.name} is out of order or repeated"
    else:
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts), f"{writer.name}'s first copies are out of order"
    for number, offset in writer.acknowledged.items():
        if offset >= 0:  # librdkafka does not always know it
            assert by_offset[offset] == f"{prefix}{number}".encode(), f"offset {offset} was reused"
