"""Starting, restarting and recovering: each broker alone on the machine."""

import time

from bench import processes
from bench.brokers import Broker, BrokerFailedError
from bench.run import MeasurementError
from bench.session import Session
from bench.wire import Connection, KafkaError, record_batch

_PATIENCE_S = 300.0
_KILLS = 3
_MESSAGE_BYTES = 1024
_MESSAGES_BETWEEN_KILLS = 500_000


def start_up(session: Session) -> None:
    """From the spawn of the process to the first acknowledged produce (acks=1, one record) on a
    topic that the client creates as soon as it is let; tried again every millisecond. First on
    a new data directory (Kafka's is formatted before, outside the clock), then, after a clean
    stop, on the same directory. One unrecorded start comes first, so that programs and
    libraries are in the page cache."""
    for name in session.options.brokers:
        with session.alone(name) as broker:
            _first_ack(broker)
    for order in session.rounds("start-up"):
        for name in order:
            with session.alone(name) as broker:
                processes.settle()
                session.record("startup_new", name, _first_ack(broker))
                broker.stop()
                processes.settle()
                session.record("startup_old", name, _first_ack(broker))


def _first_ack(broker: Broker) -> float:
    frame = Connection.produce_frame("first", record_batch(b"x" * 100), 1)
    start = time.perf_counter()
    broker.start()
    while True:
        try:
            with broker.connect() as connection:
                connection.create_topic("first")
                connection.produce(frame)
                return time.perf_counter() - start
        except (OSError, KafkaError) as error:
            _retry(broker, start, error)


def recovery(session: Session) -> None:
    """librdkafka writes the log (10 GiB, one partition, 1 KiB messages, acks=1); right after
    the last acknowledgement the broker gets SIGKILL and is spawned again. The time runs from
    that spawn until a client has both fetched the last record and produced a new one; then
    the number of records is compared with what was acknowledged. Three times, with 0.5 GB more
    written before each kill. The page cache is warm, as it is after the death of a process."""
    first = max(1, session.options.log_bytes // _MESSAGE_BYTES)
    total = _KILLS * len(session.options.brokers)
    task = session.progress.add_task("recovery after kill -9", total=total)
    for name in session.options.brokers:
        with session.alone(name) as broker:
            broker.start()
            broker.wait_ready()
            with broker.connect() as connection:
                connection.create_topic("log")
            held = 0
            for kill in range(_KILLS):
                messages = first if kill == 0 else session.amount(_MESSAGES_BETWEEN_KILLS)
                session.rdkafka(
                    "produce", broker, "log", held=held, messages=messages, size=_MESSAGE_BYTES
                )
                held += messages
                broker.kill()
                session.record("recovery", name, _recovered(broker, held))
                held += 1
                session.progress.advance(task)
        processes.settle()


def _recovered(broker: Broker, held: int) -> float:
    frame = Connection.produce_frame("log", record_batch(b"x" * 100), 1)
    start = time.perf_counter()
    broker.start()
    while True:
        try:
            with broker.connect(timeout_s=_PATIENCE_S) as connection:
                fetched = connection.fetch("log", held - 1)
                offset = connection.produce(frame)
                seconds = time.perf_counter() - start
                if not fetched or offset != held:
                    raise MeasurementError(
                        f"{broker.name} recovered {offset} records; {held} were acknowledged"
                    )
                return seconds
        except (OSError, KafkaError) as error:
            _retry(broker, start, error)


def _retry(broker: Broker, start: float, error: Exception) -> None:
    broker.check_alive()
    if time.perf_counter() - start > _PATIENCE_S:
        raise BrokerFailedError(f"{broker.name} is not up after {_PATIENCE_S:g} s") from error
    time.sleep(0.001)
