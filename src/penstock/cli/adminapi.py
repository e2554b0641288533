"""The names of confluent-kafka's admin API that the commands use; import it inside functions only.

confluent-kafka re-exports them without saying so, which a strict type check refuses: once, here.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import ElectionType
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConsumerGroupDescription,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    PartitionMetadata,
    ResourceType,
    TopicMetadata,
)

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

__all__ = [
    "EARLIEST",
    "LATEST",
    "AdminClient",
    "AlterConfigOpType",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConsumerGroupDescription",
    "ElectionType",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "PartitionMetadata",
    "ResourceType",
    "TopicMetadata",
]
