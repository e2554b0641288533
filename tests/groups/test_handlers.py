"""Every version of every group API, from kio's bytes to kio's bytes, on a whole broker.

The requests are kio's own entities, the answers are read by kio's own readers: a field that a version
has and we do not answer rightly shows here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import inspect
import io
import typing
import uuid
from typing import Any

import kio.index
import kio.serial
import pytest

from penstock.broker import Broker
from penstock.errors import ApiError, ErrorCode
from penstock.groups import SpreadCoordinator
from penstock.kafka.api import Api, Caller, RequestContext
from penstock.kafka.handlers import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from penstock.metadata.errors import StoreClosed

SECONDS = datetime.timedelta(seconds=1)
CONSUMER_RANGE = [{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"}]


def versions(api: Api[Any]) -> list[Any]:
    return [pytest.param(version, id=f"v{version}") for version in api.versions]


def entity(kind: Any, values: dict[str, Any]) -> Any:
    """A kio entity of the values that this version has; nested ones are dicts."""
    hints = typing.get_type_hints(kind)
    fields = {}
    for item in dataclasses.fields(kind):
        if item.name not in values:
            continue
        value, inner = values[item.name], _entity_type(hints[item.name])
        if inner is not None and value is not None:
            value = tuple(entity(inner, one) for one in value)
        elif isinstance(value, list):
            value = tuple(value)
        fields[item.name] = value
    return kind(**fields)


def _entity_type(annotation: Any) -> Any:
    if dataclasses.is_dataclass(annotation):
        return annotation
    found = [_entity_type(choice) for choice in typing.get_args(annotation)]
    return next((one for one in found if one is not None), None)


async def call(broker: Broker, api: Api[Any], version: int, **values: Any) -> Any:
    """Send a request of this version as a client would; kio's reading of the answer."""
    request_type = kio.index.load_request_schema(api.key, version)
    buffer = io.BytesIO()
    kio.serial.entity_writer(request_type)(buffer, entity(request_type, values))
    request = api.decode(version, buffer.getvalue())
    context = RequestContext(api_version=version, client_id="client", caller=Caller("10.0.0.1"))
    try:
        answer = api.handle(broker, request, context)
        if inspect.isawaitable(answer):
            answer = await answer
    except ApiError as error:
        assert api.on_error is not None
        answer = api.on_error(request, error.code, error.message)
    body = api.encode(version, answer)
    response_type = kio.index.load_response_schema(api.key, version)
    response, size = kio.serial.entity_reader(response_type)(body, 0)
    assert size == len(body), "bytes are left over"
    return response


async def join(broker: Broker, version: int = 9, group: str = "g", **more: Any) -> Any:
    """Join, with a second attempt if an id has to be brought."""
    values = {
        "group_id": group,
        "session_timeout": 10 * SECONDS,
        "rebalance_timeout": 20 * SECONDS,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": CONSUMER_RANGE,
        **more,
    }
    answer = await call(broker, join_group.API, version, **values)
    if answer.error_code is ErrorCode.member_id_required:
        values["member_id"] = answer.member_id
        answer = await call(broker, join_group.API, version, **values)
    return answer


async def stable(broker: Broker, group: str = "g", **more: Any) -> Any:
    member = await join(broker, group=group, **more)
    answer = await call(
        broker,
        sync_group.API,
        5,
        group_id=group,
        generation_id=member.generation_id,
        member_id=member.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": member.member_id, "assignment": b"all"}],
    )
    assert answer.error_code is ErrorCode.none
    return member


def topic_id(broker: Broker, name: str) -> uuid.UUID:
    topic = broker.topics.get(name)
    assert topic is not None
    return topic.id


UNKNOWN_ID = uuid.UUID(int=99)


class TestFindCoordinator:
    @pytest.mark.parametrize("version", versions(find_coordinator.API))
    async def test_names_this_broker(self, broker: Broker, version: int) -> None:
        answer = await call(
            broker, find_coordinator.API, version, key="g", key_type=0, coordinator_keys=["g", ""]
        )
        found = answer.coordinators if version >= 4 else [answer]
        assert (found[0].node_id, found[0].host, found[0].port) == (7, "broker.example", 19092)
        assert found[0].error_code is ErrorCode.none
        if version >= 4:
            assert [one.key for one in found] == ["g", ""]
            assert found[1].error_code is ErrorCode.invalid_group_id

    @pytest.mark.parametrize("version", range(1, 7))
    async def test_knows_no_transactions_and_no_share_groups_yet(
        self, broker: Broker, version: int
    ) -> None:
        for key_type, code, message in [
            # The one code that librdkafka does not retry for ever.
            (
                1,
                ErrorCode.transactional_id_authorization_failed,
                "Penstock has no transactions yet",
            ),
            (2, ErrorCode.invalid_request, "Penstock has no share groups yet"),
            (9, ErrorCode.invalid_request, "Penstock has no coordinators of type 9 yet"),
        ]:
            answer = await call(
                broker,
                find_coordinator.API,
                version,
                key="x",
                key_type=key_type,
                coordinator_keys=["x"],
            )
            found = answer.coordinators[0] if version >= 4 else answer
            assert (found.error_code, found.error_message) == (code, message)
            assert (found.node_id, found.host, found.port) == (-1, "", -1)

    @pytest.mark.parametrize("version", range(4))
    async def test_refuses_an_empty_group_id(self, broker: Broker, version: int) -> None:
        answer = await call(broker, find_coordinator.API, version, key="")
        assert answer.error_code is ErrorCode.invalid_group_id


class TestJoinGroup:
    @pytest.mark.parametrize("version", versions(join_group.API))
    async def test_starts_a_generation(self, broker: Broker, version: int) -> None:
        answer = await join(broker, version)
        assert (answer.error_code, answer.generation_id) == (ErrorCode.none, 1)
        assert answer.leader == answer.member_id
        assert answer.protocol_name == "range"
        assert [m.metadata for m in answer.members] == [CONSUMER_RANGE[0]["metadata"]]
        if version >= 7:
            assert answer.protocol_type == "consumer"

    @pytest.mark.parametrize("version", range(4, 10))
    async def test_wants_the_id_it_gave(self, broker: Broker, version: int) -> None:
        values: dict[str, Any] = {
            "group_id": "g",
            "session_timeout": 10 * SECONDS,
            "rebalance_timeout": 20 * SECONDS,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": CONSUMER_RANGE,
        }
        first = await call(broker, join_group.API, version, **values)
        assert first.error_code is ErrorCode.member_id_required
        assert first.member_id.startswith("client-")

    @pytest.mark.parametrize("version", range(5, 10))
    async def test_takes_static_members(self, broker: Broker, version: int) -> None:
        await stable(broker, group_instance_id="i")
        answer = await join(broker, version, group_instance_id="i")
        assert (answer.error_code, answer.generation_id) == (ErrorCode.none, 1)
        assert answer.member_id.startswith("i-")
        leads = answer.leader == answer.member_id
        assert leads is (version >= 9), "it leads, but only from version 9 can it be told to skip"
        if version >= 9:
            assert answer.skip_assignment
            assert answer.members[0].group_instance_id == "i"

    @pytest.mark.parametrize("version", versions(join_group.API))
    async def test_answers_errors_with_the_fields_of_none(
        self, broker: Broker, version: int
    ) -> None:
        answer = await join(broker, version, session_timeout=1 * SECONDS, member_id="m")
        assert answer.error_code is ErrorCode.invalid_session_timeout
        assert (answer.member_id, answer.generation_id, answer.leader) == ("m", -1, "")
        assert answer.protocol_name == (None if version >= 7 else "")

    async def test_of_version_0_rebalances_within_its_session_timeout(self, broker: Broker) -> None:
        await join(broker, 0)
        (member,) = broker.groups.of("g").describe("g").members
        assert member.rebalance_timeout_ms == member.session_timeout_ms == 10_000


class TestSyncGroup:
    @pytest.mark.parametrize("version", versions(sync_group.API))
    async def test_gives_the_assignment(self, broker: Broker, version: int) -> None:
        member = await join(broker)
        values = {
            "group_id": "g",
            "generation_id": 1,
            "member_id": member.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member.member_id, "assignment": b"all"}],
        }
        answer = await call(broker, sync_group.API, version, **values)
        assert (answer.error_code, answer.assignment) == (ErrorCode.none, b"all")
        if version >= 5:
            assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
            wrong = await call(
                broker, sync_group.API, version, **{**values, "protocol_name": "sticky"}
            )
            assert wrong.error_code is ErrorCode.inconsistent_group_protocol

    @pytest.mark.parametrize("version", versions(sync_group.API))
    async def test_refuses_strangers(self, broker: Broker, version: int) -> None:
        answer = await call(
            broker,
            sync_group.API,
            version,
            group_id="g",
            generation_id=1,
            member_id="m",
            assignments=[],
        )
        assert (answer.error_code, answer.assignment) == (ErrorCode.unknown_member_id, b"")


class TestHeartbeat:
    @pytest.mark.parametrize("version", versions(heartbeat.API))
    async def test_is_answered(self, broker: Broker, version: int) -> None:
        member = await stable(broker, group_instance_id="i")
        values = {"group_id": "g", "generation_id": 1, "member_id": member.member_id}
        answer = await call(broker, heartbeat.API, version, **values, group_instance_id="i")
        assert answer.error_code is ErrorCode.none
        values["generation_id"] = 2
        answer = await call(broker, heartbeat.API, version, **values)
        assert answer.error_code is ErrorCode.illegal_generation
        values |= {"member_id": "older", "group_instance_id": "i"}
        answer = await call(broker, heartbeat.API, version, **values)
        fenced = ErrorCode.fenced_instance_id if version >= 3 else ErrorCode.unknown_member_id
        assert answer.error_code is fenced


class TestLeaveGroup:
    @pytest.mark.parametrize("version", versions(leave_group.API))
    async def test_removes_members(self, broker: Broker, version: int) -> None:
        member = await stable(broker)
        gone = {"member_id": member.member_id, "group_instance_id": None, "reason": "done"}
        stranger = {"member_id": "", "group_instance_id": "i"}
        answer = await call(
            broker,
            leave_group.API,
            version,
            group_id="g",
            member_id=member.member_id,
            members=[gone, stranger],
        )
        assert answer.error_code is ErrorCode.none
        if version >= 3:
            assert [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members] == [
                (member.member_id, None, ErrorCode.none),
                ("", "i", ErrorCode.unknown_member_id),
            ]
        assert broker.groups.of("g").describe("g").state.value == "Empty"

    @pytest.mark.parametrize("version", range(3))
    async def test_of_one_member_answers_its_error(self, broker: Broker, version: int) -> None:
        answer = await call(broker, leave_group.API, version, group_id="g", member_id="m")
        assert answer.error_code is ErrorCode.unknown_member_id


def commit_values(broker: Broker, version: int, **more: Any) -> dict[str, Any]:
    """Offsets for t-0, t-1 and for a topic that does not exist."""
    partition = {"committed_offset": 5, "committed_leader_epoch": 3, "committed_metadata": "note"}
    known = [{"partition_index": 0, **partition}, {"partition_index": 1, **partition}]
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {"name": "t", "topic_id": topic_id(broker, "t"), "partitions": known},
            {"name": "no", "topic_id": UNKNOWN_ID, "partitions": known[:1]},
        ],
        **more,
    }


def commit_errors(answer: Any) -> list[list[ErrorCode]]:
    return [[p.error_code for p in topic.partitions] for topic in answer.topics]


class TestOffsetCommit:
    @pytest.mark.parametrize("version", versions(offset_commit.API))
    async def test_keeps_offsets_of_topics_that_exist(self, broker: Broker, version: int) -> None:
        answer = await call(broker, offset_commit.API, version, **commit_values(broker, version))
        unknown = ErrorCode.unknown_topic_or_partition
        if version >= 10:
            unknown = ErrorCode.unknown_topic_id
            assert [t.topic_id for t in answer.topics] == [topic_id(broker, "t"), UNKNOWN_ID]
        else:
            assert [t.name for t in answer.topics] == ["t", "no"]
        assert commit_errors(answer) == [[ErrorCode.none, ErrorCode.none], [unknown]]
        kept = broker.groups.of("g").offsets("g").of_topic("t")
        assert {p: (k.offset, k.metadata) for p, k in kept.items()} == {
            0: (5, "note"),
            1: (5, "note"),
        }
        assert kept[0].leader_epoch == (3 if version >= 6 else -1)

    @pytest.mark.parametrize("version", versions(offset_commit.API))
    async def test_refuses_partitions_that_do_not_exist(self, broker: Broker, version: int) -> None:
        values = commit_values(broker, version)
        first, second = values["topics"][0]["partitions"]
        values["topics"][0]["partitions"] = [first, second | {"partition_index": 99}]
        answer = await call(broker, offset_commit.API, version, **values)
        assert commit_errors(answer)[0] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        assert list(broker.groups.of("g").offsets("g").of_topic("t")) == [0]

    @pytest.mark.parametrize("version", versions(offset_commit.API))
    async def test_is_fenced(self, broker: Broker, version: int) -> None:
        stranger = commit_values(
            broker, version, generation_id_or_member_epoch=1, member_id="m", group_id="none"
        )
        answer = await call(broker, offset_commit.API, version, **stranger)
        expected = ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
        assert commit_errors(answer)[0] == [expected] * 2
        await stable(broker)
        answer = await call(broker, offset_commit.API, version, **(stranger | {"group_id": "g"}))
        assert commit_errors(answer)[0] == [ErrorCode.unknown_member_id] * 2

    @pytest.mark.parametrize("version", range(2, 5))
    async def test_takes_the_retention_of_old_versions(self, broker: Broker, version: int) -> None:
        for days, expected in {-1: None, 3: 3 * 86_400_000}.items():
            retention = datetime.timedelta(milliseconds=-1 if days < 0 else days * 86_400_000)
            values = commit_values(broker, version, retention_time=retention)
            await call(broker, offset_commit.API, version, **values)
            kept = broker.groups.of("g").offsets("g").get("t", 0)
            assert kept is not None
            expire_ms = None if expected is None else broker.clock.wall_ms() + expected
            assert kept.expire_ms == expire_ms

    async def test_with_a_closed_store_may_be_retried(self, broker: Broker) -> None:
        await broker.store.close()
        with pytest.raises(StoreClosed):
            await broker.store.put("k", b"")
        answer = await call(broker, offset_commit.API, 8, **commit_values(broker, 8))
        assert commit_errors(answer)[0] == [ErrorCode.coordinator_not_available] * 2


class TestOffsetFetch:
    @pytest.mark.parametrize("version", versions(offset_fetch.API))
    async def test_gives_what_was_committed(self, broker: Broker, version: int) -> None:
        await call(broker, offset_commit.API, 9, **commit_values(broker, 9))
        topics = [
            {"name": "t", "topic_id": topic_id(broker, "t"), "partition_indexes": [1, 9]},
            {"name": "u", "topic_id": UNKNOWN_ID, "partition_indexes": [0]},
        ]
        answer = await call(
            broker,
            offset_fetch.API,
            version,
            group_id="g",
            topics=topics,
            groups=[{"group_id": "g", "topics": topics}, {"group_id": "no", "topics": topics}],
            require_stable=True,
        )
        group = answer.groups[0] if version >= 8 else answer
        t, u = group.topics
        if version >= 10:
            assert (t.topic_id, u.topic_id) == (topic_id(broker, "t"), UNKNOWN_ID)
        else:
            assert (t.name, u.name) == ("t", "u")
        found, missing = t.partitions
        assert (found.partition_index, found.committed_offset, found.metadata) == (1, 5, "note")
        assert (missing.partition_index, missing.committed_offset, missing.metadata) == (9, -1, "")
        assert missing.error_code is ErrorCode.none
        if version >= 5:
            assert (found.committed_leader_epoch, missing.committed_leader_epoch) == (3, -1)
        unknown = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.none
        assert [(p.committed_offset, p.error_code) for p in u.partitions] == [(-1, unknown)]
        if version >= 8:
            assert [g.group_id for g in answer.groups] == ["g", "no"]
            assert answer.groups[1].error_code is ErrorCode.none
            assert answer.groups[1].topics[0].partitions[0].committed_offset == -1

    @pytest.mark.parametrize("version", range(2, 11))
    async def test_gives_all_when_no_topics_are_named(self, broker: Broker, version: int) -> None:
        await call(broker, offset_commit.API, 9, **commit_values(broker, 9))
        answer = await call(
            broker,
            offset_fetch.API,
            version,
            group_id="g",
            topics=None,
            groups=[{"group_id": "g", "topics": None}],
        )
        group = answer.groups[0] if version >= 8 else answer
        (t,) = group.topics
        assert [(p.partition_index, p.committed_offset) for p in t.partitions] == [(0, 5), (1, 5)]

    @pytest.mark.parametrize("version", versions(offset_fetch.API))
    async def test_tells_when_it_cannot(self, broker: Broker, version: int) -> None:
        await broker.groups.stop()
        topics = [{"name": "t", "topic_id": UNKNOWN_ID, "partition_indexes": [1]}]
        answer = await call(
            broker,
            offset_fetch.API,
            version,
            group_id="g",
            topics=topics,
            groups=[{"group_id": "g", "topics": topics}],
        )
        gone = ErrorCode.not_coordinator
        if version == 1:
            assert answer.topics[0].partitions[0].error_code is gone
        else:
            group = answer.groups[0] if version >= 8 else answer
            assert (group.error_code, group.topics) == (gone, ())


class TestDescribeGroups:
    @pytest.mark.parametrize("version", versions(describe_groups.API))
    async def test_shows_groups_and_their_members(self, broker: Broker, version: int) -> None:
        member = await stable(broker, group_instance_id="i")
        answer = await call(
            broker,
            describe_groups.API,
            version,
            groups=["g", "no"],
            include_authorized_operations=True,
        )
        group, missing = answer.groups
        assert (group.error_code, group.group_id) == (ErrorCode.none, "g")
        assert (group.group_state, group.protocol_type) == ("Stable", "consumer")
        assert group.protocol_data == "range"
        (one,) = group.members
        assert (one.member_id, one.client_id) == (member.member_id, "client")
        assert one.client_host == "/10.0.0.1"
        assert one.member_metadata == CONSUMER_RANGE[0]["metadata"]
        assert one.member_assignment == b"all"
        if version >= 4:
            assert one.group_instance_id == "i"
        if version >= 3:
            assert group.authorized_operations == 0b1_0100_1000
        assert missing.group_state == "Dead"
        if version >= 6:
            assert missing.error_code is ErrorCode.group_id_not_found
            assert missing.error_message == "Group no not found."
            assert group.error_message is None
        else:
            assert missing.error_code is ErrorCode.none

    async def test_names_operations_only_when_asked(self, broker: Broker) -> None:
        answer = await call(
            broker, describe_groups.API, 5, groups=["no"], include_authorized_operations=False
        )
        assert answer.groups[0].authorized_operations == -(2**31)


class TestListGroups:
    @pytest.mark.parametrize("version", versions(list_groups.API))
    async def test_shows_all_or_those_asked_for(self, broker: Broker, version: int) -> None:
        await stable(broker)
        await call(broker, offset_commit.API, 9, **commit_values(broker, 9, group_id="simple"))
        answer = await call(
            broker, list_groups.API, version, states_filter=["Stable"], types_filter=["classic"]
        )
        found = {group.group_id: group for group in answer.groups}
        assert answer.error_code is ErrorCode.none
        assert set(found) == ({"g"} if version >= 4 else {"g", "simple"})
        assert found["g"].protocol_type == "consumer"
        if version >= 4:
            assert found["g"].group_state == "Stable"
        if version >= 5:
            assert found["g"].group_type == "classic"


class TestDeleteGroups:
    @pytest.mark.parametrize("version", versions(delete_groups.API))
    async def test_deletes_the_empty(self, broker: Broker, version: int) -> None:
        await stable(broker)
        await call(broker, offset_commit.API, 9, **commit_values(broker, 9, group_id="simple"))
        answer = await call(
            broker, delete_groups.API, version, groups_names=["g", "simple", "no", "simple"]
        )
        assert {one.group_id: one.error_code for one in answer.results} == {
            "g": ErrorCode.non_empty_group,
            "simple": ErrorCode.none,
            "no": ErrorCode.group_id_not_found,
        }
        assert {group.group_id for group in broker.groups.list()} == {"g"}


class TestOffsetDelete:
    @pytest.mark.parametrize("version", versions(offset_delete.API))
    async def test_deletes_what_is_not_subscribed(self, broker: Broker, version: int) -> None:
        partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": None}
        topics = [{"name": name, "partitions": [partition]} for name in ("t", "u")]
        await call(
            broker,
            offset_commit.API,
            9,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=topics,
        )
        await stable(broker)
        asked = [{"name": name, "partitions": [partition]} for name in ("t", "u", "no")]
        asked += [{"name": "u", "partitions": [{"partition_index": 99}]}]
        answer = await call(broker, offset_delete.API, version, group_id="g", topics=asked)
        assert answer.error_code is ErrorCode.none
        assert [(t.name, t.partitions[0].error_code) for t in answer.topics] == [
            ("t", ErrorCode.group_subscribed_to_topic),
            ("u", ErrorCode.none),
            ("no", ErrorCode.unknown_topic_or_partition),
            ("u", ErrorCode.unknown_topic_or_partition),
        ]
        answer = await call(broker, offset_delete.API, version, group_id="no", topics=[])
        assert (answer.error_code, answer.topics) == (ErrorCode.group_id_not_found, ())


@pytest.fixture
async def elsewhere(broker: Broker) -> Broker:
    """A broker of a cluster, that coordinates no group."""
    await broker.groups.stop()
    broker.groups = SpreadCoordinator(
        broker.store, broker.config, broker.clock, broker.info.id, holds_lease=lambda: True
    )
    return broker


class TestAGroupThatIsElsewhere:
    """Every answer says so in the place where clients of its version look for it."""

    @pytest.mark.parametrize("version", versions(find_coordinator.API))
    async def test_is_looked_for_again(self, elsewhere: Broker, version: int) -> None:
        values = {"key": "g", "key_type": 0, "coordinator_keys": ["g"]}
        answer = await call(elsewhere, find_coordinator.API, version, **values)
        found = answer.coordinators[0] if version >= 4 else answer
        assert found.error_code is ErrorCode.coordinator_not_available
        assert (found.node_id, found.host, found.port) == (-1, "", -1)

    @pytest.mark.parametrize(
        ("api", "version"),
        [
            pytest.param(api, version, id=f"{api.name}-v{version}")
            for api in (
                join_group.API,
                sync_group.API,
                heartbeat.API,
                leave_group.API,
                offset_delete.API,
            )
            for version in api.versions
        ],
    )
    async def test_is_told_for_the_whole_request(
        self, elsewhere: Broker, api: Api[Any], version: int
    ) -> None:
        answer = await call(
            elsewhere,
            api,
            version,
            group_id="g",
            session_timeout=10 * SECONDS,
            rebalance_timeout=10 * SECONDS,
            generation_id=1,
            member_id="m",
            members=[{"member_id": "m", "group_instance_id": None}],
            protocol_type="consumer",
            protocol_name="range",
            protocols=CONSUMER_RANGE,
            assignments=[],
            topics=[],
        )
        assert answer.error_code is ErrorCode.not_coordinator

    @pytest.mark.parametrize("version", versions(offset_commit.API))
    async def test_is_told_for_each_committed_partition(
        self, elsewhere: Broker, version: int
    ) -> None:
        values = commit_values(elsewhere, version)
        answer = await call(elsewhere, offset_commit.API, version, **values)
        assert commit_errors(answer)[0] == [ErrorCode.not_coordinator] * 2

    @pytest.mark.parametrize("version", versions(offset_fetch.API))
    async def test_is_told_for_each_group_whose_offsets_are_fetched(
        self, elsewhere: Broker, version: int
    ) -> None:
        topics = [{"name": "t", "topic_id": topic_id(elsewhere, "t"), "partition_indexes": [0, 1]}]
        answer = await call(
            elsewhere,
            offset_fetch.API,
            version,
            group_id="g",
            topics=topics,
            groups=[{"group_id": "g", "topics": topics}],
        )
        group = answer.groups[0] if version >= 8 else answer
        if version >= 2:
            assert group.error_code is ErrorCode.not_coordinator
        else:
            errors = [partition.error_code for partition in group.topics[0].partitions]
            assert errors == [ErrorCode.not_coordinator] * 2

    @pytest.mark.parametrize("version", versions(describe_groups.API))
    async def test_is_told_for_each_described_group(self, elsewhere: Broker, version: int) -> None:
        answer = await call(
            elsewhere,
            describe_groups.API,
            version,
            groups=["g", "h"],
            include_authorized_operations=True,
        )
        assert [g.error_code for g in answer.groups] == [ErrorCode.not_coordinator] * 2

    @pytest.mark.parametrize("version", versions(delete_groups.API))
    async def test_is_told_for_each_deleted_group(self, elsewhere: Broker, version: int) -> None:
        answer = await call(elsewhere, delete_groups.API, version, groups_names=["g", "h"])
        assert [g.error_code for g in answer.results] == [ErrorCode.not_coordinator] * 2

    @pytest.mark.parametrize("version", versions(list_groups.API))
    async def test_is_not_listed(self, elsewhere: Broker, version: int) -> None:
        answer = await call(elsewhere, list_groups.API, version)
        assert (answer.error_code, answer.groups) == (ErrorCode.none, ())


async def test_a_deleted_topic_takes_its_offsets_along(broker: Broker) -> None:
    await call(broker, offset_commit.API, 9, **commit_values(broker, 9))
    topic = broker.topics.get("t")
    assert topic is not None
    await broker.topics.delete(topic)
    assert broker.groups.of("g").offsets("g").topics() == ()


async def test_two_members_rebalance_over_the_wire(broker: Broker) -> None:
    first = await stable(broker)
    joining = asyncio.create_task(join(broker))
    for _ in range(5):
        await asyncio.sleep(0)
    beat = {"group_id": "g", "generation_id": 1, "member_id": first.member_id}
    answer = await call(broker, heartbeat.API, 4, **beat)
    assert answer.error_code is ErrorCode.rebalance_in_progress
    leader = await join(broker, member_id=first.member_id)
    second = await joining
    assert (leader.generation_id, second.generation_id) == (2, 2)
    assert {m.member_id for m in leader.members} == {first.member_id, second.member_id}
    assert second.members == ()
