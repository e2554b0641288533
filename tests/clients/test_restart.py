"""A broker that stops and starts again: its clients go on, with all that they had."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.testing import ProcessBroker, broker_process
from tests.clients.client import (
    Client,
    CommittedOffset,
    ConsumerOptions,
    TopicPartition,
    numbered,
    until,
    values,
)
from tests.clients.conftest import PYTHON_CLIENTS


@pytest.fixture(scope="module")
def fickle() -> Iterator[ProcessBroker]:
    with broker_process() as running:
        yield running


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("kind", PYTHON_CLIENTS, ids=lambda kind: kind.name)
def test_a_group_goes_on_after_a_restart(
    kind: type[Client], end: str, fickle: ProcessBroker, unique: Callable[[str], str]
) -> None:
    client = kind(fickle.bootstrap)
    topic, group = unique("topic"), unique("group")
    at = TopicPartition(topic, 0)
    client.create_topic(topic)
    client.produce(topic, numbered(5, prefix="before"))
    with client.consumer(ConsumerOptions(group=group)) as consumer:
        consumer.subscribe(topic)
        consumer.read(5)
        consumer.commit({at: CommittedOffset(5)})
        getattr(fickle, end)()
        fickle.start()
        client.produce(topic, numbered(5, prefix="after"))
        until("the rest came", lambda: len(consumer.received) >= 10, consumer)
        assert values(consumer.received) == [
            message.value for word in ("before", "after") for message in numbered(5, prefix=word)
        ]
        consumer.commit({at: CommittedOffset(10)})
    client.close()
    later = kind(fickle.bootstrap)
    assert later.group_offsets(group) == {at: 10}
    later.close()
