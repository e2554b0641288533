"""InitProducerId: an id for an idempotent producer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ApiError, ErrorCode
from penstock.kafka.api import Api, RequestContext

if TYPE_CHECKING:
    from penstock.broker import Broker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    transactional_id: str | None
    producer_id: int = -1  # from version 3, as is the next: what the producer has now
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    error_code: ErrorCode = ErrorCode.none
    producer_id: int = -1
    producer_epoch: int = -1


async def handle(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    if request.transactional_id == "":
        raise ApiError(ErrorCode.invalid_request, "an empty transactional id")
    if request.transactional_id is not None:
        log.warning(
            "a transactional producer was refused: this broker has no transactions",
            extra={
                "client": context.client_id,
                "peer": context.caller.host,
                "transactional_id": request.transactional_id,
            },
        )
        # Of the codes that fit, the one that ends the attempt at once everywhere: librdkafka retries
        # INVALID_REQUEST until its caller's timeout, the Java client retries the coordinator errors.
        raise ApiError(
            ErrorCode.transactional_id_authorization_failed, "this broker has no transactions"
        )
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise ApiError(ErrorCode.invalid_request, "a producer id goes with its epoch")
    # Like Kafka, an idempotent producer that has an id gets a new one rather than a new epoch.
    return InitProducerIdResponse(
        producer_id=await broker.topics.producer_ids.allocate(), producer_epoch=0
    )


def on_error(
    request: InitProducerIdRequest, code: ErrorCode, message: str
) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code)


API = Api("init_producer_id", InitProducerIdRequest, handle, on_error=on_error)
