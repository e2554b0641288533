"""ListGroups: every group of this broker, or those in certain states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ErrorCode
from penstock.groups import GROUP_TYPE
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest:
    states_filter: tuple[str, ...] = ()  # from version 4; empty: all
    types_filter: tuple[str, ...] = ()  # from version 5; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    group_state: str  # from version 4
    group_type: str  # from version 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    error_code: ErrorCode = ErrorCode.none
    groups: Sequence[ListedGroup] = ()


def handle(
    broker: Broker, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse:
    found = broker.groups.list(states=request.states_filter, types=request.types_filter)
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=GROUP_TYPE,
            )
            for group in found
        ]
    )


def on_error(request: ListGroupsRequest, code: ErrorCode, message: str) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=code)


API = Api("list_groups", ListGroupsRequest, handle, on_error=on_error)
