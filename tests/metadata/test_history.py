"""The bounds of the embedded stores' history and of its watches."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from penstock.metadata.errors import Compacted
from penstock.metadata.history import History
from penstock.metadata.memory import MemoryStore
from penstock.metadata.store import Event

if TYPE_CHECKING:
    from tests.metadata.conftest import Reader


def change(revision: int, *keys: str, value: bytes = b"") -> tuple[Event, ...]:
    return tuple(
        Event(key=key, value=value, mod_revision=revision, last_in_revision=key is keys[-1])
        for key in keys
    )


async def test_it_keeps_the_newest_revisions_whole(read: Reader) -> None:
    history = History(1, events_max=5)
    for revision in range(2, 10):
        history.publish([change(revision, "a", "b")])
    for too_old in (1, 2, 7):
        with pytest.raises(Compacted) as caught:
            await read(history.watch("", too_old), 1)
        assert caught.value.oldest_revision == 8
    events = await read(history.watch("", 8), 4)
    assert [(event.mod_revision, event.key) for event in events] == [
        (8, "a"),
        (8, "b"),
        (9, "a"),
        (9, "b"),
    ]


async def test_it_keeps_no_more_bytes_than_its_bound(read: Reader) -> None:
    history = History(1, bytes_max=1_000)
    for revision in range(2, 10):
        history.publish([change(revision, "a", "b", value=bytes(200))])
    with pytest.raises(Compacted) as caught:
        await read(history.watch("", 7), 1)
    assert caught.value.oldest_revision == 8
    assert len(await read(history.watch("", 8), 4)) == 4
    history.publish([change(10, "a", value=bytes(5_000))])
    assert len(await read(history.watch("", 10), 1)) == 1
    with pytest.raises(Compacted):
        await read(history.watch("", 9), 1)
    history.publish([(Event(key="a", value=None, mod_revision=11, last_in_revision=True),)])
    assert [event.deleted for event in await read(history.watch("", 11), 1)] == [True]


async def test_the_history_of_a_store_does_not_grow_with_its_values(read: Reader) -> None:
    async with MemoryStore() as store:
        for _ in range(100):
            revision = await store.put("groups/large", bytes(512 * 1024))
        with pytest.raises(Compacted):
            await read(store.watch("", 2), 1)
        assert len(await read(store.watch("", revision), 1)) == 1


async def test_a_revision_larger_than_the_bound_can_still_be_watched(read: Reader) -> None:
    history = History(1, events_max=5)
    live = history.watch("", 2)
    history.publish([change(2, *(f"k{n}" for n in range(20)))])
    assert await read(live, 20) == await read(history.watch("", 2), 20)


async def test_a_prompt_reader_survives_a_group_larger_than_the_bound(read: Reader) -> None:
    history = History(1, events_max=5)
    watch = history.watch("", 2)
    for start in (2, 102):
        history.publish([change(revision, "k") for revision in range(start, start + 100)])
        events = await read(watch, 100)
        assert [event.mod_revision for event in events] == list(range(start, start + 100))


async def test_a_reader_that_falls_behind_is_told_and_keeps_nothing(read: Reader) -> None:
    history = History(1, events_max=5)
    slow, waiting = history.watch("k", 2), history.watch("k", 1000)
    for revision in range(2, 9):
        history.publish([change(revision, "k")])
    assert slow.unread_count == 0
    with pytest.raises(Compacted) as caught:
        await read(slow, 1)
    assert caught.value.oldest_revision == 4
    assert waiting.unread_count == 0


async def test_a_watch_nobody_holds_is_forgotten() -> None:
    history = History(1)
    forgotten = weakref.ref(history.watch("", 1 + 1))
    gc.collect()
    assert forgotten() is None
    history.publish([change(2, "k")])


async def test_one_watch_is_for_one_reader(read: Reader) -> None:
    watch = History(1).watch("", 2)
    first = asyncio.create_task(read(watch, 1))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await read(watch, 1)
    first.cancel()
