"""librdkafka by ctypes: the shared library that the `confluent-kafka` wheel carries.

Python only hands over whole arrays and counts; no call here is made once per message, so the
load runs at the speed of the C library without a compiler on the machine.
"""

import ctypes
import glob
import importlib.util
import os
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

PRODUCER, CONSUMER = 0, 1
EVENT_DELIVERY, EVENT_ERROR = 0x1, 0x8
QUEUE_FULL = -184


class RdKafkaError(Exception):
    """librdkafka refused a call, or reported an error for a message."""


class Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_char_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("opaque", c_void_p),
    )


class TopicPartition(ctypes.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("private", c_void_p),
    )


class TopicPartitionList(ctypes.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (("count", c_int), ("size", c_int), ("items", POINTER(TopicPartition)))


def _load() -> ctypes.CDLL:
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise RdKafkaError("the confluent-kafka package is not installed")
    site_packages = Path(spec.origin).parent.parent
    found = glob.glob(str(site_packages / "confluent_kafka.libs" / "librdkafka*.so*"))
    if not found:
        raise RdKafkaError("this confluent-kafka carries no librdkafka; install its wheel")
    return ctypes.CDLL(found[0])


# name: (result, arguments)
_PROTOTYPES: dict[str, tuple[type | None, list[type]]] = {
    "version_str": (c_char_p, []),
    "err2str": (c_char_p, [c_int]),
    "last_error": (c_int, []),
    "conf_new": (c_void_p, []),
    "conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "conf_set_events": (None, [c_void_p, c_int]),
    "new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "destroy": (None, [c_void_p]),
    "topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "topic_destroy": (None, [c_void_p]),
    "metadata": (c_int, [c_void_p, c_int, c_void_p, POINTER(c_void_p), c_int]),
    "metadata_destroy": (None, [c_void_p]),
    "produce_batch": (c_int, [c_void_p, c_int32, c_int, c_void_p, c_int]),
    "flush": (c_int, [c_void_p, c_int]),
    "outq_len": (c_int, [c_void_p]),
    "queue_new": (c_void_p, [c_void_p]),
    "queue_get_main": (c_void_p, [c_void_p]),
    "queue_destroy": (None, [c_void_p]),
    "queue_poll": (c_void_p, [c_void_p, c_int]),
    "event_type": (c_int, [c_void_p]),
    "event_error_string": (c_char_p, [c_void_p]),
    "event_message_count": (c_size_t, [c_void_p]),
    "event_message_next": (POINTER(Message), [c_void_p]),
    "event_destroy": (None, [c_void_p]),
    "consume_start_queue": (c_int, [c_void_p, c_int32, c_int64, c_void_p]),
    "consume_stop": (c_int, [c_void_p, c_int32]),
    "consume_callback_queue": (c_int, [c_void_p, c_int, c_void_p, c_void_p]),
    "position": (c_int, [c_void_p, POINTER(TopicPartitionList)]),
    "topic_partition_list_new": (POINTER(TopicPartitionList), [c_int]),
    "topic_partition_list_add": (c_void_p, [POINTER(TopicPartitionList), c_char_p, c_int32]),
    "topic_partition_list_destroy": (None, [POINTER(TopicPartitionList)]),
}

lib = _load()
for _name, (_result, _arguments) in _PROTOTYPES.items():
    _function = getattr(lib, f"rd_kafka_{_name}")
    _function.restype, _function.argtypes = _result, _arguments


def version() -> str:
    return str(lib.rd_kafka_version_str().decode())


def describe(code: int) -> str:
    return str(lib.rd_kafka_err2str(code).decode())


def messages_of(size: int, count: int) -> ctypes.Array[Message]:
    """`count` messages that share one payload of `size` random bytes.

    The array keeps the payload alive, so librdkafka need not copy it.
    """
    payload = os.urandom(size)
    batch = (Message * count)()
    for message in batch:
        message.payload, message.len = payload, size
    return batch


class Client:
    """A producer or consumer and one topic of it; close it after use.

    On return from the constructor the topic's metadata is known and the broker connected, so
    a clock started afterwards measures the load and not the greeting.
    """

    def __init__(self, kind: int, topic: str, settings: Mapping[str, str], events: int) -> None:
        text = ctypes.create_string_buffer(512)
        conf = lib.rd_kafka_conf_new()
        for key, value in settings.items():
            if lib.rd_kafka_conf_set(conf, key.encode(), value.encode(), text, len(text)):
                raise RdKafkaError(text.value.decode())
        lib.rd_kafka_conf_set_events(conf, events)
        self.handle = lib.rd_kafka_new(kind, conf, text, len(text))
        if not self.handle:
            raise RdKafkaError(text.value.decode())
        self.topic_name = topic.encode()
        self.topic = lib.rd_kafka_topic_new(self.handle, self.topic_name, None)
        self.events = lib.rd_kafka_queue_get_main(self.handle)
        answer = c_void_p()
        code = lib.rd_kafka_metadata(self.handle, 0, self.topic, byref(answer), 30_000)
        if code:
            raise RdKafkaError(describe(code))
        lib.rd_kafka_metadata_destroy(answer)

    def raise_errors(self, timeout_ms: int = 0) -> None:
        """Raise for an error event, or for a delivery report that carries an error."""
        while event := lib.rd_kafka_queue_poll(self.events, timeout_ms):
            timeout_ms = 0
            kind = lib.rd_kafka_event_type(event)
            if kind == EVENT_ERROR:
                raise RdKafkaError(lib.rd_kafka_event_error_string(event).decode())
            if kind == EVENT_DELIVERY:
                code = lib.rd_kafka_event_message_next(event).contents.err
                if code:
                    raise RdKafkaError(f"not delivered: {describe(code)}")
            lib.rd_kafka_event_destroy(event)

    def positions(self, partitions: int) -> list[int]:
        """For each partition the offset after the last message that was consumed."""
        asked = lib.rd_kafka_topic_partition_list_new(partitions)
        for partition in range(partitions):
            lib.rd_kafka_topic_partition_list_add(asked, self.topic_name, partition)
        if code := lib.rd_kafka_position(self.handle, asked):
            raise RdKafkaError(describe(code))
        found = [asked.contents.items[index].offset for index in range(partitions)]
        lib.rd_kafka_topic_partition_list_destroy(asked)
        return found

    def close(self) -> None:
        lib.rd_kafka_queue_destroy(self.events)
        lib.rd_kafka_topic_destroy(self.topic)
        lib.rd_kafka_destroy(self.handle)
