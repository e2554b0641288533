"""DeleteGroups: groups without members, and all their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest:
    groups_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    group_id: str
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    results: Sequence[GroupResult]


async def handle(
    broker: Broker, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    names = dict.fromkeys(request.groups_names)  # a group named twice is deleted once
    return DeleteGroupsResponse(
        results=await asyncio.gather(*[_delete(broker, name) for name in names])
    )


async def _delete(broker: Broker, group_id: str) -> GroupResult:
    try:
        await broker.groups.of(group_id).delete(group_id)
    except ApiError as error:
        return GroupResult(group_id=group_id, error_code=error.code)
    return GroupResult(group_id=group_id)


def on_error(request: DeleteGroupsRequest, code: ErrorCode, message: str) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[GroupResult(group_id=name, error_code=code) for name in request.groups_names]
    )


API = Api("delete_groups", DeleteGroupsRequest, handle, on_error=on_error)
