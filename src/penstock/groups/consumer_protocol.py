"""The little that the broker reads of the consumers' own protocol: which topics they subscribe to."""

from __future__ import annotations

import struct

PROTOCOL_TYPE = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a consumer's subscription, or None if these bytes are no subscription.

    Reads the part that every version of the subscription begins with: version (int16), then an array
    (int32 count) of topic names (int16 length, UTF-8).
    """
    topics = set()
    try:
        _, count = struct.unpack_from(">hi", metadata, 0)
        position = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            if length < 0 or position + length > len(metadata):
                return None
            topics.add(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
