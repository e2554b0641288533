"""IncrementalAlterConfigs: set, delete, append to or subtract from single settings of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.topic_configs import ConfigChange, Operation, apply_changes
from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext
from penstock.kafka.handlers.alter_configs import (
    ResourceResult,
    alterable_topic,
    check_names_differ,
    check_resources_differ,
)
from penstock.kafka.handlers.describe_configs import BROKER

if TYPE_CHECKING:
    from penstock.broker import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    name: str
    config_operation: int
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    resource_type: int
    resource_name: str
    configs: tuple[Config, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest:
    resources: tuple[Resource, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsResponse:
    responses: Sequence[ResourceResult]


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    check_resources_differ([(r.resource_type, r.resource_name) for r in request.resources])
    results = await asyncio.gather(
        *(_alter(broker, r, validate_only=request.validate_only) for r in request.resources)
    )
    return IncrementalAlterConfigsResponse(responses=results)


def on_error(
    request: IncrementalAlterConfigsRequest, code: ErrorCode, message: str
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[
            ResourceResult(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                error_code=code,
                error_message=message,
            )
            for resource in request.resources
        ]
    )


async def _alter(broker: Broker, resource: Resource, *, validate_only: bool) -> ResourceResult:
    changes = [
        ConfigChange(name=config.name, operation=config.config_operation, value=config.value)
        for config in resource.configs
    ]

    def change(overrides: Mapping[str, str]) -> dict[str, str]:
        return apply_changes(overrides, broker.config.topic_defaults, changes)

    error_code, error_message = ErrorCode.none, None
    try:
        check_names_differ([config.name for config in resource.configs])
        if not _changes_nothing(broker, resource):
            topic = alterable_topic(broker, resource.resource_type, resource.resource_name)
            await broker.topics.change_overrides(topic, change, validate_only=validate_only)
    except ApiError as error:
        error_code, error_message = error.code, error.message
    return ResourceResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=error_code,
        error_message=error_message,
    )


def _changes_nothing(broker: Broker, resource: Resource) -> bool:
    """Whether settings are only to be deleted, and of brokers: none is ever set while they run."""
    return (
        resource.resource_type == BROKER
        and resource.resource_name in {"", str(broker.info.id)}
        and all(config.config_operation == Operation.DELETE for config in resource.configs)
    )


API = Api("incremental_alter_configs", IncrementalAlterConfigsRequest, handle, on_error=on_error)
