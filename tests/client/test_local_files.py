"""Records of a broker on this machine are read from its files, if these are its files."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.cluster import Cluster
from penstock.client.errors import OffsetOutOfRange
from penstock.client.fetching import RangeReader
from penstock.client.local_files import LocalFiles
from penstock.model import TopicPartition
from penstock.testing import ThreadBroker, broker
from penstock.testing.proxy import Proxy, proxies
from penstock.wire import FileReference
from tests.client.support import delete_before, fill, read_range

RECORDS = 2_000
SIZE = 1_000
LOG_BYTES = RECORDS * SIZE


class Wire:
    """Counts what a broker sends."""

    def __init__(self) -> None:
        self.bytes_sent = 0

    def from_client(self, data: bytes) -> bytes:
        return data

    def from_server(self, data: bytes) -> bytes:
        self.bytes_sent += len(data)
        return data


class Watched:
    """A broker with one filled partition, behind a wire that counts."""

    def __init__(self, running: ThreadBroker, bootstrap: str, cluster: Cluster, wire: Wire) -> None:
        self.broker = running
        self.bootstrap = bootstrap
        self.cluster = cluster
        self.partition = TopicPartition(running.create_topic(), 0)
        self.wire = wire
        fill(cluster, self.partition, RECORDS, per_batch=20, size=SIZE)

    @property
    def directory(self) -> Path:
        return Path(self.broker.data_dir, self.partition.topic, "0")

    def reader(self, *, reads_files: bool = True, fetch_bytes: int = 300_000) -> RangeReader:
        return RangeReader(
            self.cluster,
            self.partition,
            0,
            RECORDS,
            fetch_bytes=fetch_bytes,
            prefetch=0,
            reads_files=reads_files,
        )

    def bytes_sent_for(self, reader: RangeReader) -> int:
        before = self.wire.bytes_sent
        assert read_range(reader, 0, RECORDS) == [(n, n) for n in range(RECORDS)]
        return self.wire.bytes_sent - before


@pytest.fixture
def watched() -> Iterator[Watched]:
    wire = Wire()
    with proxies() as network:
        proxy = network.add(Proxy(new_filter=lambda: wire))
        with (
            broker(advertise_addr=proxy.address) as running,
            Cluster(proxy.address, retry_timeout_ms=10_000) as cluster,
        ):
            proxy.target = running.bootstrap
            yield Watched(running, proxy.address, cluster, wire)


def test_records_of_a_broker_on_this_machine_are_not_sent(watched: Watched) -> None:
    """But for the few at the end."""
    assert watched.bytes_sent_for(watched.reader()) < LOG_BYTES / 10


def test_they_are_sent_to_who_does_not_read_files(watched: Watched) -> None:
    assert watched.bytes_sent_for(watched.reader(reads_files=False)) > LOG_BYTES


def test_few_records_are_sent_anyway(watched: Watched) -> None:
    """Asking twice would take longer than sending them."""
    assert watched.bytes_sent_for(watched.reader(fetch_bytes=30_000)) > LOG_BYTES


def test_both_ways_give_the_same_bytes(watched: Watched) -> None:
    ways = [
        [bytes(found.data) for found in watched.reader(reads_files=reads_files)]
        for reads_files in (True, False)
    ]
    assert ways[0] == ways[1]


def test_a_broker_elsewhere_is_not_asked(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.connection.is_within_this_machine", lambda _: False)
    with Cluster(watched.bootstrap) as far:
        reader = RangeReader(far, watched.partition, 0, RECORDS, prefetch=0)
        assert watched.bytes_sent_for(reader) > LOG_BYTES


# -- files that are not what the broker means ---------------------------------------------------


@contextlib.contextmanager
def moved_away(directory: Path) -> Iterator[Path]:
    """As if this process were in a container: what the broker has is not where it says."""
    elsewhere = directory.with_name("elsewhere")
    directory.rename(elsewhere)
    try:
        yield elsewhere
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        elsewhere.rename(directory)


def test_files_that_are_not_here_are_sent(watched: Watched) -> None:
    with moved_away(watched.directory):
        assert watched.bytes_sent_for(watched.reader()) > LOG_BYTES


def test_a_copy_is_not_taken_for_the_file(watched: Watched) -> None:
    """It may be older, or another broker's: only the file itself has what the broker means."""
    with moved_away(watched.directory) as elsewhere:
        shutil.copytree(elsewhere, watched.directory)
        assert watched.bytes_sent_for(watched.reader()) > LOG_BYTES


def test_one_file_that_is_not_here_is_not_asked_for_again_and_again(watched: Watched) -> None:
    with moved_away(watched.directory):
        assert watched.bytes_sent_for(watched.reader()) < LOG_BYTES * 1.5


def test_records_deleted_meanwhile_are_reported_as_ever(watched: Watched) -> None:
    reader = iter(watched.reader())
    next(reader)
    delete_before(watched.broker, watched.partition, RECORDS - 10)
    with pytest.raises(OffsetOutOfRange):
        list(reader)


# -- one reference ------------------------------------------------------------------------------

HEADER = bytes(range(61))


def reference(path: Path, *, position: int = 0, size: int = 100) -> FileReference:
    status = path.stat()
    return FileReference(status.st_dev, status.st_ino, position, size, HEADER, os.fsencode(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(HEADER + b"x" * 100)
    return path


@pytest.fixture
def files() -> Iterator[LocalFiles]:
    opened = LocalFiles()
    yield opened
    opened.close()


def test_the_bytes_that_are_meant_are_read(files: LocalFiles, file: Path) -> None:
    into = memoryview(bytearray(100))
    assert files.read(reference(file), into)
    assert into == HEADER + b"x" * 39


def test_another_batch_than_the_one_that_is_meant_is_refused(files: LocalFiles, file: Path) -> None:
    """A file of that name made anew may have the inode of the one before."""
    into = memoryview(bytearray(61))
    assert not files.read(reference(file, position=1, size=61), into)


def test_a_file_that_ends_too_early_is_refused(files: LocalFiles, file: Path) -> None:
    assert not files.read(reference(file, size=200), memoryview(bytearray(200)))


def test_a_file_that_is_gone_is_refused(files: LocalFiles, file: Path) -> None:
    meant = reference(file)
    file.unlink()
    assert not files.read(meant, memoryview(bytearray(100)))


def test_a_file_that_was_replaced_is_refused(files: LocalFiles, file: Path) -> None:
    meant = reference(file)
    file.rename(file.with_name("old"))  # still there, so that its inode is not used again
    file.write_bytes(HEADER + b"x" * 100)
    assert not files.read(meant, memoryview(bytearray(100)))


def test_a_file_that_is_open_can_be_read_when_it_is_gone(files: LocalFiles, file: Path) -> None:
    meant = reference(file)
    assert files.read(meant, memoryview(bytearray(100)))
    file.unlink()
    assert files.read(meant, memoryview(bytearray(100)))


def test_at_most_one_file_is_open(files: LocalFiles, tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for name in "abc":
        path = tmp_path / name
        path.write_bytes(HEADER + b"x" * 100)
        assert files.read(reference(path), memoryview(bytearray(100)))
    assert len(os.listdir("/dev/fd")) == before + 1
    files.close()
    assert len(os.listdir("/dev/fd")) == before


def test_a_reference_that_cannot_be_is_refused(file: Path) -> None:
    for wrong in (reference(file, position=-1), reference(file, size=60)):
        with pytest.raises(ValueError, match="bytes of a file"):
            FileReference.decode(memoryview(wrong.encode()))
