"""Settings of stock clients that live through faults: defaults, but for how soon they try again."""

from __future__ import annotations

from typing import Any, Final

CONNECTION: Final[dict[str, Any]] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 0,
    # Only unreachable brokers are reported here, and that is what this is about.
    "error_cb": lambda _: None,
}
