"""Which broker coordinates which group: slots, who should hold each, and who does.

A group belongs to one of `SLOTS` slots by its name, so that brokers claim 64 things and not one for each
group. `coordinators/{slot}` names the broker that holds it, as JSON, on that broker's lease: the claim
goes with the lease, and its revision fences every write of the coordinator.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from zlib import crc32

from penstock.metadata.errors import StoreCorrupt

__all__ = ["COORDINATORS", "SLOTS", "Claim", "Claims", "owner_of", "slot_key", "slot_of"]

SLOTS: Final = 64  # every broker of a cluster must agree on it, for ever
COORDINATORS: Final = "coordinators/"


def slot_of(group_id: str) -> int:
    return crc32(group_id.encode()) % SLOTS


def slot_key(slot: int) -> str:
    return f"{COORDINATORS}{slot:02d}"


def parse_slot_key(key: str) -> int | None:
    """The slot of a key under `COORDINATORS`; None if it names none."""
    name = key.removeprefix(COORDINATORS)
    return int(name) if name.isdecimal() and slot_key(int(name)) == key else None


def owner_of(slot: int, brokers: Collection[int]) -> int | None:
    """Who of `brokers` should hold the slot: all reckon alike, and few slots move when one comes or goes.

    (Rendezvous hashing: each broker has a weight for each slot, and the heaviest that is there has it.)
    """
    return max(brokers, key=lambda broker: (_weight(slot, broker), broker), default=None)


def _weight(slot: int, broker: int) -> bytes:
    return blake2b(f"{slot}/{broker}".encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A slot is held."""

    broker: int
    incarnation: str  # the registration whose lease the claim is on

    def encode(self) -> bytes:
        fields = {"broker": self.broker, "incarnation": self.incarnation}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, key: str, value: bytes) -> Claim:
        try:
            fields = json.loads(value)
            return cls(broker=int(fields["broker"]), incarnation=str(fields["incarnation"]))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(f"{key} in the metadata store is not a claim: {error!r}") from error


class Claims:
    """What is known of all slots. News may come in any order: the latest revision stays."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Claim | None, int]] = {}

    def get(self, slot: int) -> Claim | None:
        """Who holds the slot; None: nobody."""
        return self._seen.get(slot, (None, 0))[0]

    def revision(self, slot: int) -> int:
        """The revision that the slot was last written at, or was found free at."""
        return self._seen.get(slot, (None, 0))[1]

    def see(self, slot: int, claim: Claim | None, revision: int) -> bool:
        """Take in how the slot was at `revision`. False if that is not new."""
        if revision <= self.revision(slot):
            return False
        self._seen[slot] = (claim, revision)
        return True

    def of_broker(self, broker: int) -> list[int]:
        """The slots that the broker holds, in any of its incarnations."""
        return [
            slot
            for slot, (claim, _) in self._seen.items()
            if claim is not None and claim.broker == broker
        ]
