"""What the brokers say of the logs that a stream reads, all at once, and as sure as can be."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.errors import UnknownTopic
from penstock.model import TopicPartition
from penstock.spark.offsets import Offsets
from penstock.spark.subscription import Resolver, Subscription

_PAUSES_S: Final = (0.0, 0.3, 0.7)


@dataclass(frozen=True, slots=True)
class Logs:
    """All partitions that are there, where their logs begin and end, and the ids of their topics."""

    first: Offsets
    ends: Offsets
    ids: Mapping[str, uuid.UUID]  # those that are known

    def made_anew(self, known: Mapping[str, uuid.UUID]) -> set[TopicPartition]:
        """The partitions of topics that had another id: they were deleted, and made anew."""
        topics = {name for name, now in self.ids.items() if known.get(name, now) != now}
        return {one for one in self.ends if one.topic in topics}


def look(
    cluster: Cluster,
    subscription: Subscription,
    resolver: Resolver,
    expected: Offsets,
    known: Mapping[str, uuid.UUID],
) -> Logs:
    """Look at the logs, and again after a while if one is gone, or ends before what is `expected`.

    Or if a topic has another id than is `known`. A broker that has just started may not have heard of a
    topic yet, and one that just lost its lead may not know that it did. A topic that vanishes while we
    look is not there.
    """
    found: Logs | None = None
    failure: UnknownTopic | None = None
    for pause_s in _PAUSES_S:
        time.sleep(pause_s)
        partitions, _ = subscription.partitions(cluster)
        try:
            first, ends = resolver.earliest(partitions), resolver.latest(partitions)
            ends |= _held_back(resolver, ends, expected)
        except UnknownTopic as error:
            failure = error
            continue
        found = Logs(first, ends, cluster.topic_ids({one.topic for one in partitions}))
        is_whole = all(ends.get(one, -1) >= offset for one, offset in expected.items())
        if is_whole and not found.made_anew(known):
            break
    if found is None:
        assert failure is not None
        raise failure
    return found


def _held_back(resolver: Resolver, ends: Offsets, expected: Offsets) -> Offsets:
    """Logs that go on to what is expected, but for transactions that are open: they end there for us.

    So it is for a query that read uncommitted records before, and does so no more.
    """
    short = {one: at for one, at in expected.items() if one in ends and ends[one] < at}
    whole = resolver.uncommitted_latest(short)
    return {one: at for one, at in short.items() if whole[one] >= at}
