"""DescribeGroups: the state of groups, who is in them and what each member was assigned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ApiError, ErrorCode
from penstock.groups import GroupDescription, GroupState
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker

FIRST_VERSION_WITH_NOT_FOUND: Final = 6

# Bits by Kafka's operation codes. There is no authorization yet: everybody may do everything.
READ, DELETE, DESCRIBE = 1 << 3, 1 << 6, 1 << 8
ALL_OPERATIONS: Final = READ | DELETE | DESCRIBE
OPERATIONS_NOT_ASKED: Final = -(2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest:
    groups: tuple[str, ...]
    include_authorized_operations: bool = False  # from version 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    member_id: str
    group_instance_id: str | None  # from version 4
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None  # from version 6
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: Sequence[DescribedMember] = ()
    authorized_operations: int = OPERATIONS_NOT_ASKED  # from version 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    groups: Sequence[DescribedGroup]


def handle(
    broker: Broker, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    operations = ALL_OPERATIONS if request.include_authorized_operations else OPERATIONS_NOT_ASKED
    return DescribeGroupsResponse(
        groups=[
            _describe(broker, group_id, operations, context.api_version)
            for group_id in request.groups
        ]
    )


def _describe(broker: Broker, group_id: str, operations: int, version: int) -> DescribedGroup:
    try:
        found = broker.groups.of(group_id).describe(group_id)
    except ApiError as error:
        if error.code is not ErrorCode.group_id_not_found:
            return DescribedGroup(
                group_id=group_id, error_code=error.code, error_message=error.message
            )
        # Older clients know a group that is not there as one that is dead.
        tell = version >= FIRST_VERSION_WITH_NOT_FOUND
        return DescribedGroup(
            group_id=group_id,
            error_code=error.code if tell else ErrorCode.none,
            error_message=error.message if tell else None,
            group_state=GroupState.DEAD.value,
            authorized_operations=operations,
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=found.state.value,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol,
        members=_members(found),
        authorized_operations=operations,
    )


def _members(group: GroupDescription) -> list[DescribedMember]:
    return [
        DescribedMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=f"/{member.client_host}",  # as Java prints an address; tools cut the slash
            member_metadata=member.metadata(group.protocol),
            member_assignment=member.assignment,
        )
        for member in group.members
    ]


def on_error(
    request: DescribeGroupsRequest, code: ErrorCode, message: str
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[
            DescribedGroup(group_id=group_id, error_code=code, error_message=message)
            for group_id in request.groups
        ]
    )


API = Api("describe_groups", DescribeGroupsRequest, handle, on_error=on_error)
