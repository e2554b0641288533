"""What Penstock does not have yet is refused at once, and not waited for."""

from __future__ import annotations

import asyncio

import aiokafka
import confluent_kafka
import kafka
import kafka.errors
import pytest
from aiokafka.errors import TransactionalIdAuthorizationFailed

from penstock.errors import ErrorCode
from penstock.testing import ProcessBroker
from tests.clients.client import DEADLINE_S
from tests.clients.jvm import Scenarios

TRANSACTIONAL_ID = "orders"


def test_transactions_of_confluent_kafka(server: ProcessBroker) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "transactional.id": TRANSACTIONAL_ID,
            "log_level": 0,
        }
    )
    with pytest.raises(confluent_kafka.KafkaException, match="Penstock has no transactions") as e:
        producer.init_transactions(DEADLINE_S)
    assert e.value.args[0].code() == ErrorCode.transactional_id_authorization_failed


def test_transactions_of_kafka_python(server: ProcessBroker) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=server.bootstrap,
        transactional_id=TRANSACTIONAL_ID,
        max_block_ms=DEADLINE_S * 1_000,
    )
    with pytest.raises(kafka.errors.TransactionalIdAuthorizationFailedError):
        producer.init_transactions()
    producer.close(1)


async def test_transactions_of_aiokafka(server: ProcessBroker) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=server.bootstrap, transactional_id=TRANSACTIONAL_ID
    )
    with pytest.raises(TransactionalIdAuthorizationFailed):
        await asyncio.wait_for(producer.start(), DEADLINE_S)
    await producer.stop()


@pytest.mark.java
@pytest.mark.parametrize("scenario", ["not-yet-transactions", "not-yet-consumer-protocol"])
def test_the_java_client(scenario: str, java: Scenarios, server: ProcessBroker) -> None:
    java.run(scenario, bootstrap=server.bootstrap)
