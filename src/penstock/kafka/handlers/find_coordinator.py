"""FindCoordinator: which broker looks after a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ErrorCode
from penstock.kafka.api import Api, RequestContext, read_request

if TYPE_CHECKING:
    from penstock.broker import Broker

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
FIRST_VERSION_WITH_KEYS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    coordinator_keys: tuple[str, ...]
    key_type: int = GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleKey:
    key: str
    key_type: int = GROUP  # from version 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """The answer for one key; up to version 3, it is the whole response."""

    key: str
    node_id: int = -1
    host: str = ""
    port: int = -1
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    coordinators: Sequence[Coordinator]


def upgrade(entity: Any, version: int) -> FindCoordinatorRequest:
    if version >= FIRST_VERSION_WITH_KEYS:
        return read_request(FindCoordinatorRequest, entity)
    single = read_request(SingleKey, entity)
    return FindCoordinatorRequest(coordinator_keys=(single.key,), key_type=single.key_type)


def downgrade(response: FindCoordinatorResponse, version: int) -> Any:
    return response if version >= FIRST_VERSION_WITH_KEYS else response.coordinators[0]


def handle(
    broker: Broker, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        coordinators=[_find(broker, key, request.key_type) for key in request.coordinator_keys]
    )


def _find(broker: Broker, key: str, key_type: int) -> Coordinator:
    if key_type != GROUP:
        kinds = {TRANSACTION: "transactions", SHARE: "share groups"}
        kind = kinds.get(key_type, f"coordinators of type {key_type}")
        # librdkafka retries anything but this one for ever before it lets its user know.
        refusals = {TRANSACTION: ErrorCode.transactional_id_authorization_failed}
        return Coordinator(
            key=key,
            error_code=refusals.get(key_type, ErrorCode.invalid_request),
            error_message=f"Penstock has no {kind} yet",
        )
    if not key:
        return Coordinator(
            key=key,
            error_code=ErrorCode.invalid_group_id,
            error_message="the group id is empty",
        )
    broker_id = broker.groups.coordinator_of(key)
    info = None if broker_id is None else broker.find_broker(broker_id)
    if info is None:
        return Coordinator(
            key=key,
            error_code=ErrorCode.coordinator_not_available,
            error_message="no broker coordinates the group at the moment",
        )
    return Coordinator(key=key, node_id=info.id, host=info.host, port=info.port)


def on_error(
    request: FindCoordinatorRequest, code: ErrorCode, message: str
) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, error_code=code, error_message=message)
            for key in request.coordinator_keys
        ]
    )


API = Api(
    "find_coordinator",
    FindCoordinatorRequest,
    handle,
    on_error=on_error,
    upgrade=upgrade,
    downgrade=downgrade,
)
