"""Records of a broker on this machine are read from its files, if these are its files."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.cluster import Cluster
from penstock.client.errors import BadAnswer, OffsetOutOfRange
from penstock.client.fetch_codec import (
    FetchRequest,
    PartitionData,
    decode_response,
    encode_request,
)
from penstock.client.fetching import Fetched, Isolation, RangeReader
from penstock.client.local_files import LocalFiles
from penstock.model import TopicPartition
from penstock.testing import ThreadBroker, broker
from penstock.testing.proxy import Proxy, proxies
from penstock.wire import FileReference
from tests.client.support import (
    delete_before,
    eventually,
    fill,
    read_all,
    read_range,
    records_in,
)

RECORDS = 2_000
SIZE = 1_000
LOG_BYTES = RECORDS * SIZE


shows_open_files = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="nobody tells which files are open"
)


def open_files(directory: Path) -> list[str]:
    links = [Path("/dev/fd", name) for name in os.listdir("/dev/fd")]
    targets = [os.path.realpath(link) for link in links]
    return [target for target in targets if Path(target).is_relative_to(directory)]


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

    def __init__(
        self,
        running: ThreadBroker,
        bootstrap: str,
        cluster: Cluster,
        wire: Wire,
        cut: Callable[[], None],
    ) -> None:
        self.broker = running
        self.cut = cut  # hang up on everyone
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
            yield Watched(running, proxy.address, cluster, wire, cut=lambda: network.do(proxy.cut))


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
    monkeypatch.setattr("penstock.client.fetch_connection.is_within_this_machine", lambda _: False)
    with Cluster(watched.bootstrap) as far:
        reader = RangeReader(far, watched.partition, 0, RECORDS, prefetch=0)
        assert watched.bytes_sent_for(reader) > LOG_BYTES


# -- pieces ------------------------------------------------------------------------------------

MIB = 1 << 20
LARGE = {"max.message.bytes": str(8 * MIB)}


class Pieces:
    """A partition of 8,000 records, and the pieces in which it is read."""

    def __init__(self, watched: Watched) -> None:
        self.cluster = watched.cluster
        self.partition = TopicPartition(watched.broker.create_topic(settings=LARGE), 0)
        self.end = 0

    def add(self, records: int, per_batch: int) -> None:
        fill(self.cluster, self.partition, records, per_batch=per_batch, size=SIZE, first=self.end)
        self.end += records

    def read(self, isolation: Isolation = "read_uncommitted") -> list[Fetched]:
        reader = RangeReader(
            self.cluster, self.partition, 0, self.end, fetch_bytes=4 * MIB, isolation=isolation
        )
        pieces = [piece._replace(data=memoryview(bytes(piece.data))) for piece in reader]
        seen = [pair for piece in pieces for pair in records_in(piece, 0, self.end)]
        assert seen == [(number, number) for number in range(self.end)]
        return pieces


@pytest.fixture
def pieces(watched: Watched) -> Pieces:
    return Pieces(watched)


def change_answers(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[PartitionData], PartitionData]
) -> None:
    def changed(*arguments: Any) -> PartitionData:
        return change(decode_response(*arguments))

    monkeypatch.setattr("penstock.client.fetch_connection.decode_response", changed)


def note_requests(monkeypatch: pytest.MonkeyPatch) -> list[FetchRequest]:
    asked: list[FetchRequest] = []

    def encoded(version: int, request: FetchRequest) -> bytes:
        asked.append(request)
        return encode_request(version, request)

    monkeypatch.setattr("penstock.client.fetch_connection.encode_request", encoded)
    return asked


def test_files_are_read_in_pieces_of_2_mib_however_much_is_fetched(pieces: Pieces) -> None:
    pieces.add(8_000, per_batch=100)
    sizes = [len(piece.data) for piece in pieces.read()]
    assert max(sizes) <= 2 * MIB
    assert len(sizes) < 6


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_batch_that_is_larger_than_a_piece_comes_whole(
    pieces: Pieces, isolation: Isolation
) -> None:
    pieces.add(3_000, per_batch=3_000)
    pieces.add(500, per_batch=100)
    pieces.add(3_000, per_batch=3_000)
    assert max(len(piece.data) for piece in pieces.read(isolation)) > 2 * MIB


def test_a_last_batch_that_is_larger_than_all_before_comes_whole(pieces: Pieces) -> None:
    """What came before tells how much to read: far too little, here."""
    pieces.add(1_000, per_batch=1)
    fill(pieces.cluster, pieces.partition, 1, per_batch=1, size=3 * MIB, first=pieces.end)
    pieces.end += 1
    pieces.read()


def test_a_broker_is_asked_less_often_than_its_files_are_read(
    pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = note_requests(monkeypatch)
    pieces.add(24_000, per_batch=100)
    assert len(pieces.read()) > 10
    assert len(asked) == 2  # and the first did not know yet that files can be read


def test_a_broker_elsewhere_is_not_asked_for_more_than_is_fetched_at_once(
    watched: Watched, pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the one before, on this machine, has told of more: this one would send it all."""
    pieces.add(8_000, per_batch=100)
    asked = note_requests(monkeypatch)
    reader = RangeReader(
        watched.cluster, pieces.partition, 0, pieces.end, fetch_bytes=3 * MIB, prefetch=0
    )
    chunks = iter(reader)
    seen = records_in(next(chunks), 0, pieces.end)
    monkeypatch.setattr("penstock.client.fetch_connection.is_within_this_machine", lambda _: False)
    watched.cut()
    for chunk in chunks:
        seen += records_in(chunk, 0, pieces.end)
    assert seen == [(number, number) for number in range(pieces.end)]
    sent = [request.bytes_max for request in asked if not request.by_reference]
    assert sent
    assert max(sent) <= 3 * MIB


def test_aborted_transactions_are_told_for_all_that_is_read_at_once(
    pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a later piece nobody could tell whether they had ended in an earlier one."""
    pieces.add(8_000, per_batch=100)
    change_answers(monkeypatch, lambda answer: answer._replace(aborted=[(7, 0)]))
    first, *_ = pieces.read("read_committed")
    assert first.aborted == [(7, 0)]
    assert len(first.data) > 3 * MIB


def test_a_broker_that_tells_of_half_a_batch_is_found_out(
    pieces: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces.add(2_000, per_batch=1_000)

    def halved(answer: PartitionData) -> PartitionData:
        assert answer.reference is not None
        return answer._replace(reference=answer.reference._replace(size=500_000))

    change_answers(monkeypatch, halved)
    with pytest.raises(BadAnswer, match=r"told of 500000 bytes .* the batch at offset 0 has 10"):
        pieces.read()


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


def test_files_that_are_not_here_are_asked_for_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[FileReference] = []

    def refuse(files: LocalFiles, reference: FileReference, into: memoryview) -> bool:
        asked.append(reference)
        return False

    monkeypatch.setattr(LocalFiles, "read", refuse)
    assert watched.bytes_sent_for(watched.reader()) > LOG_BYTES
    assert len(asked) == 1


def test_a_client_of_another_machine_is_sent_the_records(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it has come to look like one of this machine: through a tunnel, for example."""
    monkeypatch.setattr("penstock.client.fetch_codec.boot_id", lambda: "another")
    assert watched.bytes_sent_for(watched.reader()) > LOG_BYTES


def test_segments_removed_meanwhile_are_reported_as_ever(penstock_broker: Any) -> None:
    running = penstock_broker(retention_check_interval_ms=50)
    small = {"segment.bytes": "1048576", "retention.ms": "-1"}
    partition = TopicPartition(running.create_topic(settings=small), 0)
    with Cluster(running.bootstrap) as cluster:
        fill(cluster, partition, 5 * RECORDS, per_batch=200, size=SIZE)
        reader = iter(RangeReader(cluster, partition, 0, 5 * RECORDS, fetch_bytes=300_000))
        next(reader)
        delete_before(running, partition, 4 * RECORDS)
        directory = Path(running.data_dir, partition.topic, "0")
        eventually(lambda: len(list(directory.glob("*.log"))) < 5)
        with pytest.raises(OffsetOutOfRange):
            list(reader)


def test_a_range_over_many_segments_comes_whole(watched: Watched) -> None:
    small = watched.broker.create_topic(settings={"segment.bytes": "1048576"})
    partition = TopicPartition(small, 0)
    fill(watched.cluster, partition, 5 * RECORDS, per_batch=200, size=SIZE)
    segments = list(Path(watched.broker.data_dir, small, "0").glob("*.log"))
    assert len(segments) > 5
    before = watched.wire.bytes_sent
    assert read_all(watched.cluster, partition) == list(range(5 * RECORDS))
    assert watched.wire.bytes_sent - before < LOG_BYTES


def test_a_reader_goes_on_by_the_wire_when_a_file_is_gone_half_way(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = RangeReader(
        watched.cluster, watched.partition, 0, RECORDS, fetch_bytes=300_000, prefetch=2
    )
    chunks = iter(reader)
    seen = records_in(next(chunks), 0, RECORDS)
    monkeypatch.setattr(LocalFiles, "read", lambda *_: False)
    for chunk in chunks:
        seen += records_in(chunk, 0, RECORDS)
    assert seen == [(n, n) for n in range(RECORDS)]


@shows_open_files
def test_the_file_is_closed_at_the_end_of_the_range(watched: Watched) -> None:
    """And not when the reader happens to be collected."""
    before = len(open_files(watched.directory))  # the broker's, which is in this process
    reader = watched.reader()
    opened = [len(open_files(watched.directory)) for _ in reader]
    assert max(opened) == before + 1
    assert len(open_files(watched.directory)) == before
    assert reader is not None


def test_records_deleted_meanwhile_are_reported_as_ever(watched: Watched) -> None:
    reader = iter(watched.reader(fetch_bytes=100_000))
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


@shows_open_files
def test_at_most_one_file_is_open(files: LocalFiles, tmp_path: Path) -> None:
    for name in "abc":
        path = tmp_path / name
        path.write_bytes(HEADER + b"x" * 100)
        assert files.read(reference(path), memoryview(bytearray(100)))
        assert open_files(tmp_path) == [str(path)]
    files.close()
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("path", [b"/dev/null", b"/\0", b"/", b""])
def test_what_is_no_file_is_refused(files: LocalFiles, path: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        status = os.stat(path)
        meant = FileReference(status.st_dev, status.st_ino, 0, 61, HEADER, path)
        assert not files.read(meant, memoryview(bytearray(61)))
    assert not files.read(FileReference(0, 0, 0, 61, HEADER, path), memoryview(bytearray(61)))


def test_a_pipe_is_not_waited_for(files: LocalFiles, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert not files.read(reference(path), memoryview(bytearray(100)))


def test_a_reference_that_cannot_be_is_refused(file: Path) -> None:
    for wrong in (reference(file, position=-1), reference(file, size=60)):
        with pytest.raises(ValueError, match="bytes of a file"):
            FileReference.decode(memoryview(wrong.encode()))
