"""One connection to another broker: answers matched, losses told, malformed bytes refused."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.controller import BrokerReport
from penstock.cluster.peers import Peer, PeerError, Peers
from penstock.errors import ApiError, ErrorCode
from penstock.kafka.server import KafkaServer
from penstock.model import TopicPartition
from penstock.settings import BrokerConfig
from tests.cluster.wired import TOPIC, Stage, until

KEY, VERSION = 1, 17

Reply = Callable[[int, bytes], bytes]
"""What to send for a request: its correlation id and its body go in, bytes for the wire come out."""


def framed(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">iib", 5 + len(body), correlation_id, 0) + body


class Broker:
    """A server that answers as the test says."""

    def __init__(self, reply: Reply | None) -> None:
        self.reply = reply
        self.connections: list[asyncio.StreamWriter] = []
        self.requests: list[tuple[int, bytes]] = []
        self.address = ("", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                _, _, correlation_id, name = struct.unpack_from(">hhih", frame)
                self.requests.append((correlation_id, frame[10 + name + 1 :]))
                if self.reply is not None:
                    writer.write(self.reply(*self.requests[-1]))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def a_broker(reply: Reply | None) -> AsyncIterator[Broker]:
    broker = Broker(reply)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.address = server.sockets[0].getsockname()
    try:
        yield broker
    finally:
        server.close()
        for writer in broker.connections:
            writer.close()


@asynccontextmanager
async def a_peer(broker: Broker, **settings: Any) -> AsyncIterator[Peer]:
    peer = Peer(2, client_id="test", **settings)
    peer.move(broker.address)
    try:
        yield peer
    finally:
        await peer.close()


def ask(peer: Peer, body: bytes = b"?", **more: Any) -> asyncio.Future[bytes]:
    return asyncio.ensure_future(peer.ask(KEY, VERSION, body, bytes, **more))


async def test_each_gets_the_answer_to_what_it_asked_in_whatever_order_they_come() -> None:
    async with a_broker(None) as broker, a_peer(broker) as peer:
        asked = [ask(peer, b"%d" % number) for number in range(10)]
        await until(lambda: len(broker.requests) == 10, "all are under way at once")
        for correlation_id, body in reversed(broker.requests):
            broker.connections[0].write(framed(correlation_id, body))
        assert await asyncio.gather(*asked) == [b"%d" % number for number in range(10)]
        assert len(broker.connections) == 1


@pytest.mark.parametrize("size", [0, 1, 65_530, 65_531, 65_532, 200_000, 9_000_000])
async def test_answers_of_any_size_come_whole(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)

    def reply(correlation_id: int, _: bytes) -> bytes:
        return framed(correlation_id, content[:size])

    async with a_broker(reply) as broker, a_peer(broker) as peer:
        for _ in range(3):
            found = await asyncio.gather(ask(peer), ask(peer))
            assert found[0] == found[1] == content[:size]


async def test_answers_in_the_smallest_pieces_come_whole() -> None:
    async with a_broker(None) as broker, a_peer(broker) as peer:
        asked = [ask(peer, b"abc"), ask(peer, b"d" * 300)]
        await until(lambda: len(broker.requests) == 2, "asked")
        for byte in b"".join(framed(*request) for request in broker.requests):
            broker.connections[0].write(bytes([byte]))
            await asyncio.sleep(0)
        assert await asyncio.gather(*asked) == [b"abc", b"d" * 300]


async def test_a_large_buffer_is_not_kept_for_ever() -> None:
    sizes = iter([5_000_000, *([10] * 300)])

    def reply(correlation_id: int, _: bytes) -> bytes:
        return framed(correlation_id, b"x" * next(sizes))

    async with a_broker(reply) as broker, a_peer(broker) as peer:
        await ask(peer)
        connection: Any = peer._connection
        assert len(connection._buffer) > 5_000_000
        for _ in range(300):
            await ask(peer)
        assert len(connection._buffer) == 64 * 1024


async def test_everybody_is_told_when_the_connection_is_lost_and_the_next_reconnects() -> None:
    async with a_broker(None) as broker, a_peer(broker) as peer:
        asked = [ask(peer), ask(peer)]
        await until(lambda: len(broker.requests) == 2, "asked")
        broker.connections[0].transport.abort()
        for future in asked:
            with pytest.raises(PeerError, match=r"broker 2 at 127\.0\.0\.1:\d+ was lost"):
                await future
        broker.reply = framed
        assert await ask(peer, b"again") == b"again"


async def test_a_peer_that_is_silent_is_given_up() -> None:
    async with a_broker(None) as broker, a_peer(broker) as peer:
        with pytest.raises(PeerError, match="nothing came"):
            await ask(peer, timeout_s=0.05)
        await until(lambda: not peer.is_connected, "closed")


async def test_a_peer_that_still_sends_is_waited_for() -> None:
    async with a_broker(None) as broker, a_peer(broker) as peer:
        asked = ask(peer, b"slow", timeout_s=1.0)
        await until(lambda: broker.requests, "asked")
        for byte in framed(*broker.requests[0]):
            broker.connections[0].write(bytes([byte]))
            await asyncio.sleep(0.12)
        assert await asked == b"slow"


async def test_nobody_there_is_a_clear_error_and_waits_longer_each_time() -> None:
    async with a_broker(framed) as broker:
        address = broker.address
    async with a_peer(broker) as peer:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        for _ in range(3):
            with pytest.raises(PeerError, match=rf"can not be reached at 127.0.0.1:{address[1]}"):
                await ask(peer)
        assert 0.15 <= loop.time() - begin_s < 5.0  # 50 ms, then 100 ms


@pytest.mark.parametrize("address", [("x" * 80 + ".example", 9092), ("127.0.0.1", 70_000)])
async def test_an_address_that_is_none_is_a_clear_error_too(address: tuple[str, int]) -> None:
    peer = Peer(2, client_id="test")
    peer.move(address)
    with pytest.raises(PeerError, match="can not be reached at"):
        await ask(peer)
    await peer.close()


async def test_a_broker_that_registers_is_tried_at_once() -> None:
    async with a_broker(framed) as broker:
        peer = Peer(2, client_id="test")
        for _ in range(5):
            with pytest.raises(PeerError, match="broker 2 is not registered"):
                await ask(peer)
        asked = ask(peer)  # has to wait for most of a second
        await asyncio.sleep(0.05)
        begin_s = asyncio.get_running_loop().time()
        peer.move(broker.address)
        assert await asked == b"?"
        assert asyncio.get_running_loop().time() - begin_s < 0.4
        await peer.close()


async def test_a_broker_whose_registration_ended_is_not_asked_any_more() -> None:
    async with a_broker(None) as broker, a_peer(broker) as peer:
        asked = ask(peer)
        await until(lambda: broker.requests, "asked")
        peer.move(None)
        with pytest.raises(PeerError, match="not registered there any more"):
            await asked
        with pytest.raises(PeerError, match="is not registered"):
            await ask(peer)


async def test_closing_tells_everybody() -> None:
    async with a_broker(None) as broker, a_peer(broker) as peer:
        asked = ask(peer)
        await until(lambda: broker.requests, "asked")
        await peer.close()
        with pytest.raises(PeerError, match="this broker stops"):
            await asked
        with pytest.raises(PeerError, match="stops"):
            await ask(peer)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack(">i", -1), "an answer of -1 bytes"),
        (struct.pack(">i", 4) + b"1234", "an answer of 4 bytes"),
        (struct.pack(">i", 1 << 30), "an answer of 1073741824 bytes"),
        (struct.pack(">iib", 5, 4711, 0), "it answers what nobody asked"),
        (struct.pack(">iib", 5, 1, 1), "a malformed answer"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an answer of"),
    ],
)
async def test_bytes_that_are_no_answer_close_the_connection_with_one_line(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        a_broker(lambda *_: sent) as broker,
        a_peer(broker, answer_bytes_max=1 << 20) as peer,
    ):
        with pytest.raises(PeerError, match=reason):
            await ask(peer)
        assert not peer.is_connected
        lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) == 1
        assert reason in lines[0].getMessage()
        broker.reply = framed
        assert await ask(peer, b"again") == b"again"


MALFORMED_FETCH_ANSWERS = [
    b"",
    b"\x00" * 9,
    struct.pack(">ihi", 0, 0, 5) + b"\xff\xff\xff\xff\x07",  # 2 G topics
    struct.pack(">ihi", 0, 0, 5) + b"\x02" + b"u" * 16 + b"\x02" + b"\x00" * 20,  # cut short
    struct.pack(">ihi", 0, 0, 5) + b"\x02" + b"u" * 16 + b"\x02"
    + struct.pack(">ihqqq", 0, 0, 0, 0, 0) + b"\x00" + b"\xff" * 4 + b"\xff\x7f",  # records missing
    struct.pack(">ihi", 0, 0, 5) + b"\x01\x00" + b"more",
]  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED_FETCH_ANSWERS)
async def test_a_leader_that_answers_nonsense_harms_nobody(
    body: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        stage = Stage(tmp_path)
        stack.push_async_callback(stage.stop)
        sound, follower = await stage.add(1), await stage.add(2)
        await stage.create(sound, follower, partitions=2)
        await stage.until_in_sync(sound, follower, partitions=2)
        broken = await stack.enter_async_context(a_broker(lambda number, _: framed(number, body)))
        odd = replace(stage.state(1), leader=3, leader_incarnation="3", leader_epoch=2)
        odd = replace(odd, replicas=(1, 2, 3), isr={**odd.isr, 3: "3.1"})
        follower.peers.update(3, broken.address)
        stage.write_partition(TopicPartition(TOPIC, 1), odd)
        await until(lambda: len(follower.host.lost) >= 2, "its fetches are lost, and made again")
        sound.append(b"x", index=0)
        await until(lambda: follower.log(0).log_end_offset == 1, "the other goes on")
        assert follower.log(1).log_end_offset == 0
        refused = [line for line in caplog.messages if line.startswith("closing peer=broker 3")]
        assert 1 <= len(refused) <= len(broken.connections)
        assert not [record for record in caplog.records if record.exc_info]


async def test_a_report_reaches_the_controller_whole(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        stage = Stage(tmp_path)
        stack.push_async_callback(stage.stop)
        controller, broker = await stage.add(1), await stage.add(2)
        names = [TopicPartition("a.topic-with_everything", index) for index in range(3_000)]
        report = BrokerReport(
            broker=2,
            incarnation="4611686018427387903",
            log_ends={name: 2**40 + name.partition for name in names},
            high_watermarks={names[0]: 2**40},
            opened={names[0]: None, names[1]: "can’t open: “disk” full\n"},
        )
        await broker.peers.report(1, report)
        await broker.peers.report(1, BrokerReport(broker=2, incarnation="1"))
        assert controller.reports == [report, BrokerReport(broker=2, incarnation="1")]


async def test_a_report_is_not_kept_waiting_by_a_fetch_that_waits(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        stage = Stage(tmp_path, replica_fetch_wait_ms_max=60_000)
        stack.push_async_callback(stage.stop)
        leader, follower = await stage.add(1), await stage.add(2)
        await stage.create(leader, follower)
        await stage.until_in_sync(leader, follower)
        async with asyncio.timeout(1.0):
            for _ in range(10):
                await follower.peers.report(1, BrokerReport(broker=2, incarnation="1"))
        assert len(leader.reports) == 10
        assert len(leader.server._connections) == 1


async def test_who_is_not_the_controller_says_so(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=str(tmp_path / "data"), addr="127.0.0.1:0")
    server = await KafkaServer.start(config)
    peers = Peers(replace(config, broker_id=2))
    peers.update(1, server.address)
    with pytest.raises(ApiError, match="did not take the report") as caught:
        await peers.report(1, BrokerReport(broker=2, incarnation="1"))
    assert caught.value.code is ErrorCode.not_controller
    await peers.close()
    await server.stop()


def _report(**parts: str) -> bytes:
    """A sound report, but for these parts."""
    sound = {"broker": "1", "incarnation": '""', "log_ends": "{}", "high_watermarks": "{}"}
    body = ",".join(f'"{name}":{text}' for name, text in {**sound, "opened": "{}", **parts}.items())
    return f"{{{body}}}".encode()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b"1",
     _report(broker='"x"'), _report(log_ends="[]"), _report(log_ends='{"../t":{"0":1}}'),
     _report(log_ends='{"t":{"x":1}}'), _report(log_ends='{"t":{"0":null}}'),
     _report(high_watermarks="[]"), _report(high_watermarks='{"t":{"0":"1"}}'),
     _report(opened="[]")],
)  # fmt: skip
async def test_a_report_that_is_none_closes_its_connection(body: bytes, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        stage = Stage(tmp_path)
        stack.push_async_callback(stage.stop)
        controller = await stage.add(1)
        peer = Peer(1, client_id="test")
        stack.push_async_callback(peer.close)
        peer.move(controller.server.address)
        with pytest.raises(PeerError, match="was lost"):
            await peer.ask(12_001, 0, body, bytes)
        assert not controller.reports
