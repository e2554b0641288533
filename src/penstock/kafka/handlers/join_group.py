"""JoinGroup: a client becomes a member of a group's next generation, and waits for it to begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.errors import ErrorCode
from penstock.groups import Assignor, JoinedMember
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker

FIRST_VERSION_WITH_REBALANCE_TIMEOUT: Final = 1
FIRST_VERSION_REQUIRING_MEMBER_ID: Final = 4
FIRST_VERSION_WITH_NULL_PROTOCOL: Final = 7
FIRST_VERSION_SKIPPING_ASSIGNMENT: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest:
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1  # from version 1
    member_id: str
    group_instance_id: str | None = None  # from version 5
    protocol_type: str
    protocols: tuple[Assignor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    error_code: ErrorCode
    generation_id: int = -1
    protocol_type: str | None = None  # from version 7
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False  # from version 9
    member_id: str
    members: Sequence[JoinedMember] = ()


async def handle(
    broker: Broker, request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse:
    version = context.api_version
    has_rebalance_timeout = version >= FIRST_VERSION_WITH_REBALANCE_TIMEOUT
    result = await broker.groups.of(request.group_id).join(
        request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id,
        client_host=context.caller.host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=request.protocols,
        requires_member_id=version >= FIRST_VERSION_REQUIRING_MEMBER_ID,
        can_skip_assignment=version >= FIRST_VERSION_SKIPPING_ASSIGNMENT,
    )
    return JoinGroupResponse(
        error_code=result.error_code,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=result.members,
    )


def downgrade(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    if version < FIRST_VERSION_WITH_NULL_PROTOCOL and response.protocol_name is None:
        return replace(response, protocol_name="")
    return response


def on_error(request: JoinGroupRequest, code: ErrorCode, message: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=request.member_id)


API = Api("join_group", JoinGroupRequest, handle, on_error=on_error, downgrade=downgrade)
