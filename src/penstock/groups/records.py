"""How the metadata store keeps groups and offsets.

`offsets/{group}/{topic}/{partition}` is one committed offset. `groups/{group}` is a generation of a
group with its members; one that is too large for a single write is kept in parts, under
`groups/{group}/{version}/{part}`, and `groups/{group}` says which version counts. Group names are
percent-encoded, so they may hold any characters. Values are JSON.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from penstock.groups.messages import Assignor, GroupRecord, Member
from penstock.groups.offsets import CommittedOffset
from penstock.metadata.errors import StoreCorrupt
from penstock.model import TopicPartition

GROUPS: Final = "groups/"
OFFSETS: Final = "offsets/"
TOPICS: Final = "topics/"  # not ours: looked at to tell which offsets are of topics that are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Where the value of a group is when it is not in its own key."""

    version: int
    count: int


def topic_key(topic: str) -> str:
    return TOPICS + topic


def group_of_key(key: str) -> str:
    """The group that a key under `GROUPS` or `OFFSETS` belongs to."""
    try:
        return unquote(key.split("/", 2)[1], errors="strict")
    except UnicodeDecodeError as error:
        raise _corrupt(key, "a key of a group", error) from error


def group_key(group_id: str) -> str:
    return GROUPS + quote(group_id, safe="")


def parts_prefix(group_id: str, version: int | None = None) -> str:
    """Of the parts of one version, or of all."""
    prefix = f"{group_key(group_id)}/"
    return prefix if version is None else f"{prefix}{version}/"


def part_key(group_id: str, version: int, index: int) -> str:
    return f"{parts_prefix(group_id, version)}{index:06d}"


def offsets_prefix(group_id: str, topic: str | None = None) -> str:
    prefix = f"{OFFSETS}{quote(group_id, safe='')}/"
    return prefix if topic is None else f"{prefix}{topic}/"


def offset_key(group_id: str, at: TopicPartition) -> str:
    return f"{offsets_prefix(group_id, at.topic)}{at.partition}"


def parse_offset_key(key: str) -> tuple[str, TopicPartition]:
    try:
        group, topic, partition = key.removeprefix(OFFSETS).split("/")
        return unquote(group, errors="strict"), TopicPartition(topic, int(partition))
    except ValueError as error:
        raise _corrupt(key, "the key of an offset", error) from error


def encode_offset(value: CommittedOffset) -> bytes:
    fields: dict[str, Any] = {
        "offset": value.offset,
        "leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "commit_ms": value.commit_ms,
    }
    if value.expire_ms is not None:
        fields["expire_ms"] = value.expire_ms
    return _dump(fields)


def decode_offset(key: str, value: bytes) -> CommittedOffset:
    try:
        fields = json.loads(value)
        expire_ms = fields.get("expire_ms")
        return CommittedOffset(
            offset=int(fields["offset"]),
            leader_epoch=int(fields["leader_epoch"]),
            metadata=str(fields["metadata"]),
            commit_ms=int(fields["commit_ms"]),
            expire_ms=None if expire_ms is None else int(expire_ms),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(key, "a committed offset", error) from error


def encode_group(record: GroupRecord) -> bytes:
    return _dump(
        {
            "generation": record.generation,
            "protocol_type": record.protocol_type,
            "protocol": record.protocol,
            "leader": record.leader,
            "state_ms": record.state_ms,
            "members": [_member_fields(member) for member in record.members],
        }
    )


def encode_parts(parts: Parts) -> bytes:
    return _dump({"version": parts.version, "parts": parts.count})


def decode_parts(key: str, value: bytes) -> Parts | None:
    """Where the group's value is, or None if `value` is it."""
    try:
        fields = json.loads(value)
        if "parts" not in fields:
            return None
        return Parts(version=int(fields["version"]), count=int(fields["parts"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(key, "a group", error) from error


def decode_group(key: str, value: bytes) -> GroupRecord:
    try:
        fields = json.loads(value)
        return GroupRecord(
            group_id=unquote(key.removeprefix(GROUPS), errors="strict"),
            generation=int(fields["generation"]),
            protocol_type=_optional_text(fields["protocol_type"]),
            protocol=_optional_text(fields["protocol"]),
            leader=_optional_text(fields["leader"]),
            state_ms=int(fields["state_ms"]),
            members=tuple(_member(item) for item in fields["members"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(key, "a group", error) from error


def _member_fields(member: Member) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "protocols": [[offer.name, _text(offer.metadata)] for offer in member.protocols],
        "assignment": _text(member.assignment),
    }


def _member(fields: dict[str, Any]) -> Member:
    return Member(
        member_id=str(fields["member_id"]),
        group_instance_id=_optional_text(fields["group_instance_id"]),
        client_id=str(fields["client_id"]),
        client_host=str(fields["client_host"]),
        session_timeout_ms=int(fields["session_timeout_ms"]),
        rebalance_timeout_ms=int(fields["rebalance_timeout_ms"]),
        protocols=tuple(
            Assignor(name=str(name), metadata=base64.b64decode(text))
            for name, text in fields["protocols"]
        ),
        assignment=base64.b64decode(fields["assignment"]),
    )


def _optional_text(value: Any) -> str | None:
    return None if value is None else str(value)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _corrupt(key: str, what: str, error: Exception) -> StoreCorrupt:
    return StoreCorrupt(f"{key} in the metadata store is not {what}: {error!r}")
