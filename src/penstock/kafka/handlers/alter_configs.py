"""AlterConfigs: replace all of a topic's own settings by those given."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext
from penstock.kafka.handlers.describe_configs import BROKER, TOPIC

if TYPE_CHECKING:
    from penstock.broker import Broker
    from penstock.broker.topics import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    resource_type: int
    resource_name: str
    configs: tuple[Config, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest:
    resources: tuple[Resource, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceResult:
    resource_type: int
    resource_name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse:
    responses: Sequence[ResourceResult]


async def handle(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    check_resources_differ([(r.resource_type, r.resource_name) for r in request.resources])
    results = await asyncio.gather(
        *(_alter(broker, r, validate_only=request.validate_only) for r in request.resources)
    )
    return AlterConfigsResponse(responses=results)


def on_error(request: AlterConfigsRequest, code: ErrorCode, message: str) -> AlterConfigsResponse:
    return AlterConfigsResponse(
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
    error_code, error_message = ErrorCode.none, None
    try:
        topic = alterable_topic(broker, resource.resource_type, resource.resource_name)
        check_names_differ([config.name for config in resource.configs])
        overrides: dict[str, str] = {}
        for config in resource.configs:
            if config.value is None:
                raise ApiError(ErrorCode.invalid_request, f"{config.name} is given no value")
            overrides[config.name] = config.value
        await broker.topics.set_overrides(topic, overrides, validate_only=validate_only)
    except ApiError as error:
        error_code, error_message = error.code, error.message
    return ResourceResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=error_code,
        error_message=error_message,
    )


def check_resources_differ(resources: Sequence[tuple[int, str]]) -> None:
    if any(times > 1 for times in Counter(resources).values()):
        raise ApiError(ErrorCode.invalid_request, "each resource must appear at most once")


def check_names_differ(names: Sequence[str]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise ApiError(
            ErrorCode.invalid_request, f"settings given more than once: {', '.join(repeated)}"
        )


def alterable_topic(broker: Broker, resource_type: int, resource_name: str) -> Topic:
    """The topic that a resource names; other resources can not be changed."""
    if resource_type == TOPIC:
        return broker.topics.require(resource_name)
    if resource_type == BROKER:
        raise ApiError(
            ErrorCode.invalid_request,
            "the broker's settings are read-only; they are given when it is started",
        )
    raise ApiError(ErrorCode.invalid_request, f"resource type {resource_type} has no settings here")


API = Api("alter_configs", AlterConfigsRequest, handle, on_error=on_error)
