"""ApiVersions: what this broker speaks. The answer is derived from the registry of handlers."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import API_KEYS, Api, RequestContext
from penstock.kafka.librdkafka import Pace, is_librdkafka

if TYPE_CHECKING:
    from penstock.broker import Broker

# From version 3 on the client says what it is; Kafka's rule, so that the names are fit for metrics.
SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
FIRST_VERSION_WITH_SOFTWARE: Final = 3

# Produce is served from version 3, the first that carries record batch v2. It is advertised from 0, as
# Apache Kafka 4 does (KAFKA-18659): older librdkafka takes a broker without Produce 0 for one that
# knows no compression, and silently sends uncompressed (confluentinc/librdkafka#4956).
PRODUCE: Final = API_KEYS["produce"]
ADVERTISED_PRODUCE_MIN_VERSION: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    error_code: ErrorCode
    api_keys: Sequence[ApiVersion] = ()


def handle(
    broker: Broker, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    if context.api_version >= FIRST_VERSION_WITH_SOFTWARE and not (
        SOFTWARE_NAME.fullmatch(request.client_software_name)
        and SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        raise ApiError(
            ErrorCode.invalid_request, "the client's software name or version is illegal"
        )
    caller = context.caller
    if (
        broker.config.pace_librdkafka
        and caller.socket is not None
        and is_librdkafka(request.client_software_name, request.client_software_version)
    ):
        caller.pace = Pace(caller.socket)
    return _supported()


def on_error(request: ApiVersionsRequest, code: ErrorCode, message: str) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=code)


@functools.cache
def _supported() -> ApiVersionsResponse:
    from penstock.kafka.handlers import REGISTRY

    return ApiVersionsResponse(
        error_code=ErrorCode.none,
        api_keys=[_advertised(key, REGISTRY.versions(key)) for key in sorted(REGISTRY)],
    )


def _advertised(key: int, versions: range) -> ApiVersion:
    return ApiVersion(
        api_key=key,
        min_version=ADVERTISED_PRODUCE_MIN_VERSION if key == PRODUCE else versions[0],
        max_version=versions[-1],
    )


def unsupported_version_body() -> bytes:
    """The answer, in version 0, to an ApiVersions request of a version that is not known here.

    As in Kafka (KIP-511) it names the versions of ApiVersions itself, and the client asks again.
    """
    response = ApiVersionsResponse(
        error_code=ErrorCode.unsupported_version, api_keys=[_advertised(API.key, API.versions)]
    )
    return API.encode(0, response)


API = Api("api_versions", ApiVersionsRequest, handle, on_error=on_error)
