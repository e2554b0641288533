"""A real broker for tests: no Docker, no mocks, ready in a fraction of a second.

    from penstock.testing import broker

    def test_orders() -> None:
        with broker() as b:
            producer = Producer({"bootstrap.servers": b.bootstrap})
            …

`broker()` runs in a thread of the test's process; `broker_process()` is a process of its own that a
test can kill. In pytest, the fixtures `penstock`, `penstock_shared` and `penstock_broker` do the same:
see `penstock.testing.plugin`.
"""

from __future__ import annotations

from penstock.testing.brokers import ProcessBroker, TestBroker, ThreadBroker, broker, broker_process

__all__ = ["ProcessBroker", "TestBroker", "ThreadBroker", "broker", "broker_process"]
