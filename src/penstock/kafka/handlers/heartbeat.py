"""Heartbeat: a group member says that it lives, and learns whether to rejoin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ErrorCode
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None  # from version 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    error_code: ErrorCode


def handle(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    broker.groups.of(request.group_id).heartbeat(
        request.group_id,
        member_id=request.member_id,
        generation_id=request.generation_id,
        group_instance_id=request.group_instance_id,
    )
    return HeartbeatResponse(error_code=ErrorCode.none)


def on_error(request: HeartbeatRequest, code: ErrorCode, message: str) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


API = Api("heartbeat", HeartbeatRequest, handle, on_error=on_error)
