"""Read a topic without looking at its records: `python -m bench.drain --port P --topic T --partitions N`.

A client that only receives and counts: what it reads in a second is what the broker and the network can give.
It asks for what librdkafka asks for by default, at most 1 MB of a partition and 50 MB in all, one request
after the other, for every partition that has more; those that it got something of come last in the next
request. It prints one JSON object.
"""

import argparse
import json
import socket
import struct
import time

from bench.wire import FETCH, Connection, KafkaError, array, string

_PARTITION_BYTES = 1024 * 1024
_ANSWER_BYTES = 50 * 1024 * 1024
_LIMITS = struct.pack(">iiiib", -1, 500, 1, _ANSWER_BYTES, 0)
_ASKED = struct.Struct(">iqi")
_TOPICS = struct.Struct(">iiih")  # correlation id, throttle time, topics, length of the first name
_PARTITION = struct.Struct(">ihqqii")  # with the number of aborted transactions, and of bytes
_BATCH_HEADER_BYTES = 61


class Drain:
    """Where each partition is read next, and the memory that answers are received into."""

    def __init__(self, port: int, topic: str, ends: dict[int, int]) -> None:
        self._topic = topic
        self._ends = ends
        self._next = {index: 0 for index, end in ends.items() if end}
        self._buffer = bytearray(2 * _ANSWER_BYTES)
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        while self._next:
            asked = [_ASKED.pack(index, at, _PARTITION_BYTES) for index, at in self._next.items()]
            body = _LIMITS + array([string(self._topic) + array(asked)])
            self._socket.sendall(Connection.frame(FETCH, 4, body))
            self._take(self._receive())
        self._socket.close()

    def _receive(self) -> memoryview:
        view = memoryview(self._buffer)
        have, size = 0, 4
        while have < size:
            received = self._socket.recv_into(view[have:])
            if not received:
                raise ConnectionError("the broker closed the connection")
            have += received
            if size == 4 and have >= 4:
                size += struct.unpack_from(">i", view)[0]
        return view[4:size]

    def _take(self, answer: memoryview) -> None:
        """Note how far each partition has come. Looks at the headers of batches only."""
        *_, name = _TOPICS.unpack_from(answer, 0)
        at = _TOPICS.size + name
        (count,) = struct.unpack_from(">i", answer, at)
        at += 4
        for _ in range(count):
            index, code, _hw, _stable, aborted, size = _PARTITION.unpack_from(answer, at)
            if code or aborted > 0:
                raise KafkaError(f"partition {index}: error code {code}")
            at += _PARTITION.size
            if size > 0:
                offset = _next_offset(answer[at : at + size], self._next.pop(index))
                if offset < self._ends[index]:
                    self._next[index] = offset
                at += size


def _next_offset(records: memoryview, offset: int) -> int:
    """Behind the last whole batch."""
    at = 0
    while at + _BATCH_HEADER_BYTES <= len(records):
        base, length = struct.unpack_from(">qi", records, at)
        if at + 12 + length > len(records):
            break
        offset = base + struct.unpack_from(">i", records, at + 23)[0] + 1
        at += 12 + length
    return offset


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.drain", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    arguments = parser.parse_args()
    with Connection(arguments.port) as connection:
        ends = connection.end_offsets(arguments.topic, range(arguments.partitions))
    drain = Drain(arguments.port, arguments.topic, dict(enumerate(ends)))
    start = time.perf_counter()
    drain.run()
    seconds = time.perf_counter() - start
    print(json.dumps({"messages": sum(ends), "seconds": seconds}))


if __name__ == "__main__":
    main()
