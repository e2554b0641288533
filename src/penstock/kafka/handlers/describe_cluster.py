"""DescribeCluster: the brokers there are, for an admin client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker

BROKERS: Final = 1
CONTROLLERS: Final = 2

NOT_ASKED: Final = -(2**31)  # "authorized operations" that the client did not ask for


def bits(*operations: int) -> int:
    """A bit field of Kafka's ACL operation codes."""
    return sum(1 << operation for operation in operations)


# What Kafka answers where nobody is refused anything: create, alter, describe, cluster action,
# describe configs, alter configs, idempotent write.
ALL_ON_CLUSTER: Final = bits(5, 7, 8, 9, 10, 11, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool
    endpoint_type: int = BROKERS  # from version 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBroker:
    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterResponse:
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    endpoint_type: int = BROKERS
    cluster_id: str = ""
    controller_id: int = -1
    brokers: Sequence[ClusterBroker] = ()
    cluster_authorized_operations: int = NOT_ASKED


def handle(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        raise ApiError(
            ErrorCode.mismatched_endpoint_type, "this is an endpoint of a broker, not a controller"
        )
    if request.endpoint_type != BROKERS:
        raise ApiError(
            ErrorCode.unsupported_endpoint_type, f"unknown endpoint type {request.endpoint_type}"
        )
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        brokers=[
            ClusterBroker(broker_id=info.id, host=info.host, port=info.port, rack=info.rack)
            for info in broker.registered_brokers()
        ],
        cluster_authorized_operations=(
            ALL_ON_CLUSTER if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def on_error(
    request: DescribeClusterRequest, code: ErrorCode, message: str
) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=code, error_message=message)


API = Api("describe_cluster", DescribeClusterRequest, handle, on_error=on_error)
