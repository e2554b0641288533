"""Headers old and new, for every API in every version; and ApiVersions, which is the exception."""

from __future__ import annotations

import struct
from typing import Any

import kio.index
import pytest
from kio.schema.errors import ErrorCode

from penstock.kafka.api import ApiBase
from penstock.kafka.handlers import REGISTRY
from tests.kafka.tagging import uvarint
from tests.kafka.wire import Wire, encode, frame, parse_response, request, sized

API_VERSIONS = 18
EVERY_VERSION = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in REGISTRY.values()
    for version in api.versions
]


def plain(api: ApiBase, version: int) -> Any:
    """A request that says as little as possible, yet has an answer."""
    return request(api.name, version, acks=1)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_an_answer_has_the_header_of_its_version(wire: Wire, api: ApiBase, version: int) -> None:
    wire.ask(plain(api, version))


@pytest.mark.parametrize("name", ["metadata", "produce", "fetch", "api_versions", "heartbeat"])
@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize("client_id", [None, "", "x" * 1000, "日本"])
def test_a_client_id_is_anything_or_nothing(
    wire: Wire, name: str, newest: bool, client_id: str | None
) -> None:
    api = next(item for item in REGISTRY.values() if item.name == name)
    version = api.versions[-1 if newest else 0]
    wire.send_bytes(frame(plain(api, version), 7, client_id))
    response_type = kio.index.load_response_schema(api.key, version)
    parse_response(response_type, 7, wire.receive_frame())


@pytest.mark.parametrize("name", ["metadata", "produce", "fetch", "api_versions"])
def test_unknown_tags_in_a_request_header_are_ignored(wire: Wire, name: str) -> None:
    api = next(item for item in REGISTRY.values() if item.name == name)
    version = api.versions[-1]
    tags = uvarint(2) + uvarint(0) + uvarint(3) + b"abc" + uvarint(77) + uvarint(0)
    head = struct.pack(">hhih", api.key, version, 9, -1)
    wire.send_bytes(sized(head + tags + encode(plain(api, version))))
    response_type = kio.index.load_response_schema(api.key, version)
    parse_response(response_type, 9, wire.receive_frame())


@pytest.mark.parametrize("correlation_id", [0, -1, 2**31 - 1, -(2**31)])
def test_a_correlation_id_comes_back_as_it_was_sent(wire: Wire, correlation_id: int) -> None:
    asked = request("heartbeat", 4)
    wire.send_bytes(frame(asked, correlation_id))
    parse_response(kio.index.load_response_schema(12, 4), correlation_id, wire.receive_frame())


@pytest.mark.parametrize("version", REGISTRY[API_VERSIONS].versions)
def test_api_versions_advertises_what_is_registered(wire: Wire, version: int) -> None:
    answer = wire.ask(
        request("api_versions", version, client_software_name="t", client_software_version="1")
    )
    assert answer.error_code is ErrorCode.none
    advertised = {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys}
    expected = {key: (api.versions[0], api.versions[-1]) for key, api in REGISTRY.items()}
    expected[0] = (0, expected[0][1])  # see ADVERTISED_PRODUCE_MIN_VERSION
    assert advertised == expected


@pytest.mark.parametrize("version", [5, 127, 32767, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    wire: Wire, version: int
) -> None:
    """A newer client learns from it which version to ask in, on the same connection."""
    wire.send_bytes(sized(struct.pack(">hhih", API_VERSIONS, version, 5, -1) + b"\x00whatever"))
    response_type = kio.index.load_response_schema(API_VERSIONS, 0)
    answer = parse_response(response_type, 5, wire.receive_frame())
    assert answer.error_code is ErrorCode.unsupported_version
    served = REGISTRY[API_VERSIONS].versions
    assert [(item.api_key, item.min_version, item.max_version) for item in answer.api_keys] == [
        (API_VERSIONS, served[0], served[-1])
    ]
    wire.ask(request("api_versions", 0))


def test_versions_of_the_newest_schema_are_consecutive() -> None:
    for api in REGISTRY.values():
        for version in api.versions:
            kio.index.load_request_schema(api.key, version)
            kio.index.load_response_schema(api.key, version)
