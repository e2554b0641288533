"""Slots: who should hold each, and what is known of who does."""

from __future__ import annotations

import pytest

from penstock.groups.slots import (
    SLOTS,
    Claim,
    Claims,
    owner_of,
    parse_slot_key,
    slot_key,
    slot_of,
)
from penstock.metadata.errors import StoreCorrupt


def owners(*brokers: int) -> list[int | None]:
    return [owner_of(slot, brokers) for slot in range(SLOTS)]


def test_slots_and_owners_are_the_same_in_every_version() -> None:
    """Brokers of different versions have to agree: these may never change."""
    assert [slot_of(name) for name in ("", "g", "orders", "größe")] == [0, 54, 46, 9]
    assert owners(1, 2, 3)[:12] == [1, 2, 2, 2, 2, 3, 3, 1, 3, 3, 2, 1]


def test_every_broker_has_its_share_and_the_order_does_not_matter() -> None:
    assert owners(1, 2, 3) == owners(3, 1, 2)
    for brokers in ((1, 2, 3), (0, 1, 2), (101, 102, 103, 104, 105)):
        counts = [owners(*brokers).count(broker) for broker in brokers]
        assert min(counts) >= SLOTS / len(brokers) / 2


def test_a_broker_that_comes_or_goes_moves_only_its_own_slots() -> None:
    before, after = owners(1, 2, 3), owners(1, 2, 3, 4)
    for old, new in zip(before, after, strict=True):
        assert new in (old, 4)
    assert 4 in after


def test_without_brokers_there_is_no_owner() -> None:
    assert owner_of(0, ()) is None


def test_keys_name_slots() -> None:
    assert [parse_slot_key(slot_key(slot)) for slot in range(SLOTS)] == list(range(SLOTS))
    for key in ("coordinators/", "coordinators/x", "coordinators/007", "coordinators/7/x"):
        assert parse_slot_key(key) is None


def test_claims_are_json() -> None:
    claim = Claim(broker=2, incarnation="77")
    assert claim.encode() == b'{"broker":2,"incarnation":"77"}'
    assert Claim.decode("coordinators/01", claim.encode()) == claim
    for value in (b"", b"{}", b"[]", b'{"broker":"x","incarnation":"1"}'):
        with pytest.raises(StoreCorrupt, match="coordinators/01"):
            Claim.decode("coordinators/01", value)


def test_the_latest_news_of_a_slot_stays() -> None:
    claims, mine = Claims(), Claim(broker=1, incarnation="1")
    assert claims.see(5, mine, 10)
    assert not claims.see(5, None, 9)
    assert not claims.see(5, None, 10)
    assert (claims.get(5), claims.revision(5), claims.of_broker(1)) == (mine, 10, [5])
    assert claims.see(5, None, 11)
    assert (claims.get(5), claims.revision(5), claims.of_broker(1)) == (None, 11, [])
    assert (claims.get(6), claims.revision(6)) == (None, 0)
