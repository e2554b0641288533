"""A broker tells the controller how long its logs are and which it has opened. Between brokers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.controller import BrokerReport
from penstock.cluster.report_codec import KEY, decode_report, encode_answer
from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Answer, Caller, RawApi

if TYPE_CHECKING:
    from penstock.kafka.router import KafkaDoor


def decode(_version: int, data: memoryview, position: int) -> BrokerReport:
    return decode_report(bytes(data[position:]))


def answer(door: KafkaDoor, _version: int, report: BrokerReport, _caller: Caller) -> Answer:
    node = door.broker.node
    if node is None:
        return encode_answer(ErrorCode.not_controller)
    try:
        node.on_report(report)
    except ApiError as error:
        return encode_answer(error.code)
    return encode_answer(ErrorCode.none)


API = RawApi("broker_report", decode, answer, private_key=KEY)
