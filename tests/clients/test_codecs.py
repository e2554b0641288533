"""Compression: what one client wrote with any codec, every client reads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.testing import ProcessBroker
from tests.clients.client import CODECS, Client
from tests.clients.peers import Content, Peer

CLIENTS = [
    "confluent-kafka",
    "kafka-python",
    "aiokafka",
    pytest.param("kcat", marks=pytest.mark.kcat),
    pytest.param("java", marks=pytest.mark.java),
]
Written = Callable[[str], str]


def pairs(codec: str) -> list[tuple[str, str]]:
    return [(f"{codec}-{i}", f"value-{i} " + "compressible " * 20) for i in range(50)]


@pytest.fixture(scope="session")
def topics_written() -> dict[str, str]:
    return {}


@pytest.fixture
def written(
    topics_written: dict[str, str],
    peers: Callable[[str], Peer],
    clients: dict[str, Client],
    unique: Callable[[str], str],
) -> Written:
    """The topic that a client wrote with each codec in turn."""

    def by(writer: str) -> str:
        writing = peers(writer)
        if writer not in topics_written:
            topic = unique(f"codecs-{writer}")
            clients["confluent-kafka"].create_topic(topic)
            for codec in CODECS:
                writing.write(topic, pairs(codec), codec)
            topics_written[writer] = topic
        return topics_written[writer]

    return by


@pytest.mark.parametrize("reader", CLIENTS)
@pytest.mark.parametrize("writer", CLIENTS)
def test_what_one_client_writes_with_any_codec_another_reads(
    writer: str, reader: str, written: Written, peers: Callable[[str], Peer]
) -> None:
    headers = (("from", writer.encode()),)
    expected: list[Content] = [
        (key.encode(), value.encode(), headers) for codec in CODECS for key, value in pairs(codec)
    ]
    assert peers(reader).read(written(writer)) == expected


@pytest.mark.parametrize("writer", CLIENTS)
def test_batches_stay_as_they_were_compressed(
    writer: str, written: Written, server: ProcessBroker
) -> None:
    found = stored_codecs(server, written(writer))
    assert list(dict.fromkeys(found)) == list(CODECS)


def stored_codecs(server: ProcessBroker, topic: str) -> Iterator[str]:
    """The codec of each batch in the first segment of partition 0, by the bytes of the file."""
    data = (Path(server.data_dir) / topic / "0" / f"{0:020d}.log").read_bytes()
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position + 8)
        (attributes,) = struct.unpack_from(">h", data, position + 21)
        yield CODECS[attributes & 7]
        position += 12 + length
