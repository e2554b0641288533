"""The SQLite store in a process of its own that is killed, or that runs out of disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from penstock.metadata.sqlite import SqliteStore

# Counts in twenty keys at once; says "key count" after each commit that returned.
COUNTING = """
import asyncio, os, sys
from penstock.metadata.sqlite import SqliteStore

async def count(store, key):
    entry = await store.get(key)
    n = int(entry.value) if entry else 0
    while True:
        n += 1
        await store.put(key, str(n).encode())
        os.write(1, f"{key} {n}\\n".encode())

async def main():
    store = await SqliteStore.open(sys.argv[1])
    lease = await store.lease(3600)
    await store.put("leased", b"", lease=lease)
    await asyncio.gather(*(count(store, f"count/{i}") for i in range(20)))

asyncio.run(main())
"""

# The file size limit is a disk that is full at 1 MiB, until the limit is lifted.
FULL_DISK = """
import asyncio, resource, sys
from penstock.metadata.errors import StoreUnavailable
from penstock.metadata.sqlite import SqliteStore

def disk_bytes(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main():
    store = await SqliteStore.open(sys.argv[1])
    await store.put("first", b"")
    disk_bytes(1024 * 1024)
    written, refused = [], []
    for n in range(100):
        try:
            await store.put(f"k{n:03}", bytes(50_000))
            written.append(f"k{n:03}")
        except StoreUnavailable:
            refused.append(f"k{n:03}")
            snapshot = await store.get_prefix("")
            assert [e.key for e in snapshot.entries] == ["first", *written], "reads go on"
    assert written and len(refused) > 10, (len(written), len(refused))
    disk_bytes(resource.RLIM_INFINITY)
    await asyncio.gather(*(store.put(key, b"small") for key in refused))
    snapshot = await store.get_prefix("")
    assert len(snapshot.entries) == 101
    if sys.argv[2] == "close":
        await store.close()
    print(snapshot.revision, flush=True)
    if sys.argv[2] == "die":
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def start(script: str, *args: str, stderr: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *args],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


async def test_every_answered_commit_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    answered: dict[str, int] = {}
    revision = 0
    for _ in range(4):
        with start(COUNTING, str(path)) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(400)]
            process.kill()
            lines += process.stdout.readlines()
        for line in lines:
            if line.endswith(b"\n"):
                key, count = line.decode().split()
                assert int(count) == answered.get(key, 0) + 1
                answered[key] = int(count)
        async with await SqliteStore.open(path) as store:
            snapshot = await store.get_prefix("")
        stored = {entry.key: int(entry.value) for entry in snapshot.entries}
        assert stored.keys() == answered.keys(), "and the leased key is gone"
        # At most the one commit in flight is ahead of its answer.
        assert all(answered[key] <= stored[key] <= answered[key] + 1 for key in answered)
        assert snapshot.revision > revision
        revision = snapshot.revision
        answered = stored


async def test_a_second_process_gets_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with await SqliteStore.open(path):
        with start(COUNTING, str(path), stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            last_line = process.stderr.readlines()[-1]
    assert process.returncode == 1
    assert b"StoreLocked" in last_line
    assert b"is in use by another process" in last_line


async def test_a_full_disk_refuses_writes_until_there_is_room(tmp_path: Path) -> None:
    for end in ("close", "die"):
        path = tmp_path / f"{end}.db"
        with start(FULL_DISK, str(path), end) as process:
            assert process.stdout is not None
            revision = int(process.stdout.read() or 0)
        assert process.returncode == (0 if end == "close" else -9)
        async with await SqliteStore.open(path) as store:
            snapshot = await store.get_prefix("")
        assert (snapshot.revision, len(snapshot.entries)) == (revision, 101)
