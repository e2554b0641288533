"""DescribeConfigs: the settings of topics and of the broker, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.broker.topic_configs import ConfigEntry, Synonym, describe_broker, describe_topic
from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker

TOPIC: Final = 2
BROKER: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None  # null or empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest:
    resources: tuple[Resource, ...]
    include_synonyms: bool
    include_documentation: bool = False  # from version 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResult:
    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool
    synonyms: Sequence[Synonym]
    config_type: int
    documentation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceResult:
    resource_type: int
    resource_name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    configs: Sequence[ConfigResult] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    results: Sequence[ResourceResult]


def handle(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_describe(broker, request, resource) for resource in request.resources]
    )


def on_error(
    request: DescribeConfigsRequest, code: ErrorCode, message: str
) -> DescribeConfigsResponse:
    error = ApiError(code, message)
    return DescribeConfigsResponse(results=[_failed(item, error) for item in request.resources])


def _failed(resource: Resource, error: ApiError) -> ResourceResult:
    return ResourceResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=error.code,
        error_message=error.message,
    )


def _describe(
    broker: Broker, request: DescribeConfigsRequest, resource: Resource
) -> ResourceResult:
    try:
        entries = _entries(broker, resource)
    except ApiError as error:
        return _failed(resource, error)
    keys = frozenset(resource.configuration_keys or ())
    return ResourceResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_result(entry, request) for entry in entries if not keys or entry.name in keys],
    )


def _entries(broker: Broker, resource: Resource) -> Iterable[ConfigEntry]:
    if resource.resource_type == TOPIC:
        topic = broker.topics.require(resource.resource_name)
        return describe_topic(broker.config.topic_defaults, topic.overrides)
    if resource.resource_type == BROKER:
        if not resource.resource_name:
            return ()  # settings changed at run time for all brokers: there are none
        if resource.resource_name == str(broker.info.id):
            return describe_broker(broker.config)
        raise ApiError(
            ErrorCode.invalid_request,
            f"this is broker {broker.info.id}, not {resource.resource_name!r}",
        )
    raise ApiError(
        ErrorCode.invalid_request, f"resource type {resource.resource_type} has no settings here"
    )


def _result(entry: ConfigEntry, request: DescribeConfigsRequest) -> ConfigResult:
    return ConfigResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=entry.synonyms if request.include_synonyms else (),
        config_type=entry.kind,
        documentation=entry.help if request.include_documentation else None,
    )


API = Api("describe_configs", DescribeConfigsRequest, handle, on_error=on_error)
