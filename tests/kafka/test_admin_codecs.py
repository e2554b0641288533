"""Every admin API in every version: kio's requests are read, handled, and answered so that kio reads it.

Requests are drawn by Hypothesis from each version's own schema, with names and numbers that sometimes
mean something to the broker: a topic that is there, a setting that exists.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import io
import types
import typing
import uuid
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import kio.index
import kio.serial
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.index import schema_name_map

from penstock.broker import Broker
from penstock.broker.topics import TopicCatalog
from penstock.clock import ManualClock
from penstock.errors import ApiError, ErrorCode
from penstock.groups import GroupCoordinator
from penstock.kafka.api import Api, Caller, RequestContext
from penstock.kafka.handlers import (
    REGISTRY,
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    elect_leaders,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_for_leader_epoch,
)
from penstock.log import LogStore
from penstock.metadata.memory import MemoryStore
from penstock.model import BrokerInfo
from penstock.settings import BrokerConfig
from tests.kafka.handler_types import response_type

APIS: list[Api[Any]] = [
    module.API
    for module in (
        alter_configs,
        alter_partition_reassignments,
        api_versions,
        create_partitions,
        create_topics,
        delete_records,
        delete_topics,
        describe_cluster,
        describe_configs,
        describe_log_dirs,
        describe_producers,
        describe_topic_partitions,
        elect_leaders,
        incremental_alter_configs,
        init_producer_id,
        list_offsets,
        list_partition_reassignments,
        metadata,
        offset_for_leader_epoch,
    )
]
EVERY_VERSION = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in APIS
    for version in api.versions
]
TOPIC_ID = uuid.UUID(int=5)  # of no topic

TEXTS = st.sampled_from(
    ["there", "other", "new", "not/legal", "", "0", "cleanup.policy", "retention.ms", "delete", "1"]
)
NUMBERS = st.sampled_from([-6, -5, -3, -2, -1, 0, 1, 2, 3, 4, 8, 100])
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "bool": st.booleans(),
    "uuid": st.sampled_from([None, TOPIC_ID]),
    "error_code": st.just(ErrorCode.none),
    "timedelta_i32": st.just(datetime.timedelta(seconds=1)),
    "timedelta_i64": st.just(datetime.timedelta(seconds=1)),
}


def is_nullable(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def parts(annotation: Any) -> Iterator[Any]:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        for choice in typing.get_args(annotation):
            yield from parts(choice)
    else:
        yield annotation


def value_of(annotation: Any, kafka_type: str | None) -> st.SearchStrategy[Any]:
    choices: list[st.SearchStrategy[Any]] = []
    for part in parts(annotation):
        if part is type(None):
            choices.append(st.none())
        elif typing.get_origin(part) is tuple:
            element = value_of(typing.get_args(part)[0], kafka_type)
            choices.append(st.lists(element, max_size=3).map(tuple))
        elif is_dataclass(part):
            choices.append(entity_of(part))
        else:
            choices.append(SCALARS.get(kafka_type, NUMBERS))
    return st.one_of(choices)


def entity_of(entity_type: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(entity_type)
    return st.builds(
        entity_type,
        **{
            item.name: value_of(hints[item.name], item.metadata.get("kafka_type"))
            for item in fields(entity_type)
        },
    )


def encode(entity: Any) -> bytes:
    with io.BytesIO() as buffer:
        kio.serial.entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def decode(entity_type: Any, body: bytes) -> Any:
    entity, size = kio.serial.entity_reader(entity_type)(body, 0)
    assert size == len(body), "the response has bytes that its schema does not know"
    return entity


async def answer(broker: Broker, api: Api[Any], version: int, body: bytes) -> Any:
    """What the router does: decode, handle, translate an `ApiError`, encode."""
    context = RequestContext(api_version=version, client_id="test", caller=Caller("127.0.0.1"))
    request = api.decode(version, body)
    try:
        response = api.handle(broker, request, context)
        if inspect.isawaitable(response):
            response = await response
    except ApiError as error:
        assert api.on_error is not None
        response = api.on_error(request, error.code, error.message)
    return decode(kio.index.load_response_schema(api.key, version), api.encode(version, response))


async def start_broker(directory: Path) -> Broker:
    config = BrokerConfig(data_dir=str(directory))
    info = BrokerInfo(id=0, host="broker.example", port=9092)
    clock = ManualClock()
    store, logs = MemoryStore(), LogStore(config, clock)
    topics = TopicCatalog(store, logs, config, info.id)
    groups = GroupCoordinator(store, config, clock)
    broker = Broker(config, info, "cluster", store, logs, clock, topics, groups)
    await broker.topics.create("there", 3)
    await broker.topics.create("other", 1, {"retention.ms": "1000"})
    return broker


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_whatever_is_asked_is_answered(api: Api[Any], version: int, tmp_path: Path) -> None:
    request_type = kio.index.load_request_schema(api.key, version)
    with asyncio.Runner() as runner:
        broker = runner.run(start_broker(tmp_path))

        @given(entity=entity_of(request_type))
        @settings(
            max_examples=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def ask(entity: Any) -> None:
            runner.run(answer(broker, api, version, encode(entity)))

        ask()
        runner.run(broker.topics.close())
        runner.run(broker.logs.close())


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_an_error_has_an_answer_too(api: Api[Any], version: int) -> None:
    request_type = kio.index.load_request_schema(api.key, version)

    @given(entity=entity_of(request_type))
    @settings(max_examples=10, deadline=None, derandomize=True, database=None)
    def fail(entity: Any) -> None:
        assert api.on_error is not None
        request = api.decode(version, encode(entity))
        response = api.on_error(request, ErrorCode.kafka_storage_error, "the disk is full")
        response_type = kio.index.load_response_schema(api.key, version)
        decode(response_type, api.encode(version, response))

    fail()


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_version_that_kio_knows_is_served(api: Api[Any]) -> None:
    assert REGISTRY[api.key] is api
    assert list(api.versions) == sorted(schema_name_map[api.name])


def test_our_responses_name_no_field_that_kio_does_not_have() -> None:
    """A misspelt field would be left out silently."""
    for api in APIS:
        theirs: set[str] = set()
        for version in api.versions:
            theirs |= names_in(kio.index.load_response_schema(api.key, version))
        ours = names_in(response_type(api))
        assert ours <= theirs, f"{api.name}: {ours - theirs}"


def names_in(entity_type: Any) -> set[str]:
    """The names of all its fields, nested ones too, with kio's times as our `…_ms`."""
    names: set[str] = set()
    hints = typing.get_type_hints(entity_type)
    for item in fields(entity_type):
        is_time = str(item.metadata.get("kafka_type")).startswith(("timedelta", "datetime"))
        names.add(f"{item.name}_ms" if is_time else item.name)
        for part in parts(hints[item.name]):
            for nested in (part, *typing.get_args(part)):
                if is_dataclass(nested):
                    names |= names_in(nested)
    return names


def test_api_versions_is_derived_from_the_registry(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        broker = runner.run(start_broker(tmp_path))
        request_type: Any = kio.index.load_request_schema(api_versions.API.key, 4)
        body = encode(
            request_type(client_software_name="librdkafka", client_software_version="2.8.0")
        )
        response = runner.run(answer(broker, api_versions.API, 4, body))
        runner.run(broker.logs.close())
    assert response.error_code is ErrorCode.none
    advertised = {item.api_key: (item.min_version, item.max_version) for item in response.api_keys}
    assert advertised.keys() == REGISTRY.keys()
    for key, api in REGISTRY.items():
        lowest = 0 if api.name == "produce" else api.versions[0]
        assert advertised[key] == (lowest, api.versions[-1])


@pytest.mark.parametrize("name", ["", "-x", "x-", "a b", "ä"])
def test_api_versions_refuses_an_illegal_software_name(name: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        broker = runner.run(start_broker(tmp_path))
        request_type: Any = kio.index.load_request_schema(api_versions.API.key, 3)
        body = encode(request_type(client_software_name=name, client_software_version="1.0"))
        response = runner.run(answer(broker, api_versions.API, 3, body))
        runner.run(broker.logs.close())
    assert response.error_code is ErrorCode.invalid_request


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    response_type = kio.index.load_response_schema(api_versions.API.key, 0)
    response = decode(response_type, api_versions.unsupported_version_body())
    assert response.error_code is ErrorCode.unsupported_version
    assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [(18, 0, 4)]
