"""The names every layer shares. Imports nothing of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicPartition(NamedTuple):
    """One ordered log: partition `partition` of topic `topic`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A broker as its clients see it: the address is the advertised one."""

    id: int
    host: str
    port: int
    rack: str | None = None


def is_legal_topic_name(name: str) -> bool:
    """Kafka's rule: 1 to 249 of ASCII letters, digits, `.`, `_`, `-`, and not `.` or `..`."""
    return name not in {".", ".."} and LEGAL_TOPIC_NAME.fullmatch(name) is not None
