"""SyncGroup: the leader hands in the assignment, and every member gets its part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ErrorCode
from penstock.groups import SyncRequest
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None  # from version 3
    protocol_type: str | None = None  # from version 5
    protocol_name: str | None = None  # from version 5
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    error_code: ErrorCode
    protocol_type: str | None = None  # from version 5
    protocol_name: str | None = None  # from version 5
    assignment: bytes = b""


async def handle(
    broker: Broker, request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse:
    result = await broker.groups.of(request.group_id).sync(
        request.group_id,
        SyncRequest(
            member_id=request.member_id,
            generation_id=request.generation_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments={one.member_id: one.assignment for one in request.assignments},
        ),
    )
    return SyncGroupResponse(
        error_code=result.error_code,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


def on_error(request: SyncGroupRequest, code: ErrorCode, message: str) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)


API = Api("sync_group", SyncGroupRequest, handle, on_error=on_error)
