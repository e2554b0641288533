"""A network that can be hurt, and other powers over an etcd."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

from penstock.metadata.etcd_client import EtcdClient
from penstock.metadata.etcd_config import EtcdConfig
from penstock.metadata.etcd_messages import COMPACT, RANGE


class Proxy:
    """Passes bytes on to `target` (host:port), as long as it is let.

    `silent`: bytes from either side are held back, as if the network had lost them for now.
    `swallow_answers`: what the server says next is dropped and the connection is cut.
    `answer_delay_s`: what the server says is passed on later.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._port = 0
        self.swallow_answers = False
        self.answer_delay_s = 0.0
        self.connections = 0  # ever made

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def silent(self) -> bool:
        return not self._flowing.is_set()

    @silent.setter
    def silent(self, value: bool) -> None:
        if value:
            self._flowing.clear()
        else:
            self._flowing.set()

    async def start(self) -> None:
        """Listen, on the same port in all of its lives."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections and cut those that are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection, both ways, with nothing said before."""
        for writer in list(self._writers):
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, far_writer, from_server=False))
                group.create_task(self._pass_on(far_reader, writer, from_server=True))
        except* (OSError, _Cut, asyncio.CancelledError):
            pass  # cancelled by `stop`: a server's callback that ends so is logged as a failure
        finally:
            self._writers -= pair
            for end in pair:
                _reset(end)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_server: bool
    ) -> None:
        while data := await reader.read(65536):
            await self._flowing.wait()
            if from_server:
                if self.swallow_answers:
                    raise _Cut
                if self.answer_delay_s:
                    await asyncio.sleep(self.answer_delay_s)
            writer.write(data)
            await writer.drain()
        raise _Cut


class _Cut(Exception):
    pass


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.asynccontextmanager
async def proxy(target: str) -> AsyncIterator[Proxy]:
    running = Proxy(target)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def compact(endpoints: tuple[str, ...]) -> None:
    """Have etcd forget all history up to now."""
    client = EtcdClient(EtcdConfig(endpoints=endpoints))
    newest = (await client.call(RANGE, RANGE.request(key=b"-"))).header.revision
    await client.call(COMPACT, COMPACT.request(revision=newest, physical=True))
    await client.close()
