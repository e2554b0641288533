"""LeaveGroup: members go; from version 3 many at once, or sent away by their group instance id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ErrorCode
from penstock.groups import Leaving
from penstock.kafka.api import Api, RequestContext, read_request

if TYPE_CHECKING:
    from penstock.broker import Broker

FIRST_VERSION_WITH_MEMBERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    group_id: str
    members: tuple[Leaving, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleMember:
    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    error_code: ErrorCode = ErrorCode.none
    members: Sequence[MemberResult] = ()  # from version 3


def upgrade(entity: Any, version: int) -> LeaveGroupRequest:
    if version >= FIRST_VERSION_WITH_MEMBERS:
        return read_request(LeaveGroupRequest, entity)
    single = read_request(SingleMember, entity)
    return LeaveGroupRequest(
        group_id=single.group_id, members=(Leaving(member_id=single.member_id),)
    )


def downgrade(response: LeaveGroupResponse, version: int) -> LeaveGroupResponse:
    if version < FIRST_VERSION_WITH_MEMBERS and response.members:
        return LeaveGroupResponse(error_code=response.members[0].error_code)
    return response


def handle(
    broker: Broker, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse:
    errors = broker.groups.of(request.group_id).leave(request.group_id, request.members)
    return LeaveGroupResponse(
        members=[
            MemberResult(
                member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=error
            )
            for one, error in zip(request.members, errors, strict=True)
        ]
    )


def on_error(request: LeaveGroupRequest, code: ErrorCode, message: str) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)


API = Api(
    "leave_group",
    LeaveGroupRequest,
    handle,
    on_error=on_error,
    upgrade=upgrade,
    downgrade=downgrade,
)
