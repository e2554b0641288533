"""Every client as one that writes and one that reads, for what they must be able to tell each other."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tests.clients import kcat
from tests.clients.client import Client, Headers, Message
from tests.clients.jvm import Scenarios

Content = tuple[bytes | None, bytes | None, Headers]


class Peer(ABC):
    """Keys and values are texts; every record has the header "from" with the writer's name."""

    name: str

    @abstractmethod
    def write(self, topic: str, pairs: Sequence[tuple[str, str]], codec: str) -> None: ...

    @abstractmethod
    def read(self, topic: str) -> list[Content]:
        """All of partition 0."""


class PythonPeer(Peer):
    def __init__(self, client: Client) -> None:
        self.name = client.name
        self._client = client

    def write(self, topic: str, pairs: Sequence[tuple[str, str]], codec: str) -> None:
        headers = (("from", self.name.encode()),)
        messages = [
            Message(key=key.encode(), value=value.encode(), headers=headers) for key, value in pairs
        ]
        self._client.produce(topic, messages, codec=codec)

    def read(self, topic: str) -> list[Content]:
        return [record.content for record in self._client.read_all(topic)]


class KcatPeer(Peer):
    name = "kcat"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def write(self, topic: str, pairs: Sequence[tuple[str, str]], codec: str) -> None:
        lines = "".join(f"{key}\t{value}\n" for key, value in pairs)
        producing = ("-P", "-t", topic, "-p", "0", "-K", "\t", "-H", f"from={self.name}")
        # Without a pause it sends the first record alone, and a batch of one is not compressed.
        kcat.run(self._bootstrap, *producing, "-z", codec, "-X", "linger.ms=50", stdin=lines)

    def read(self, topic: str) -> list[Content]:
        output = kcat.run(
            self._bootstrap,
            "-C",
            "-t",
            topic,
            "-p",
            "0",
            "-o",
            "beginning",
            "-e",
            "-q",
            "-J",
            "-X",
            "fetch.wait.max.ms=10",  # it knows that it is at the end by a fetch that brings nothing
        )
        return [
            (
                record["key"].encode(),
                record["payload"].encode(),
                tuple((name, value.encode()) for name, value in kcat.header_pairs(record)),
            )
            for record in kcat.records(output)
        ]


class JavaPeer(Peer):
    name = "java"

    def __init__(self, bootstrap: str, scenarios: Scenarios) -> None:
        self._bootstrap = bootstrap
        self._scenarios = scenarios

    def write(self, topic: str, pairs: Sequence[tuple[str, str]], codec: str) -> None:
        texts = [text for pair in pairs for text in pair]
        self._scenarios.run("exchange-write", topic, codec, *texts, bootstrap=self._bootstrap)

    def read(self, topic: str) -> list[Content]:
        answer = self._scenarios.run("exchange-read", topic, bootstrap=self._bootstrap)
        contents: list[Content] = []
        for line in answer.strip("\t").split("\t"):
            _, key, value, *headers = line.split(" ")
            pairs = zip(headers[::2], headers[1::2], strict=True)
            contents.append(
                (
                    base64.b64decode(key),
                    base64.b64decode(value),
                    tuple((name, base64.b64decode(text)) for name, text in pairs),
                )
            )
        return contents
