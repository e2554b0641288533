"""The measurements by name, in the order in which a full run makes them.

Those that need the machine for one broker alone come first and last, so that the warmed-up
pair is started once. Each function's docstring is printed in the results: it is the statement
of how its figures were obtained.
"""

from collections.abc import Callable

from bench.measures import latency, lifecycle, scale, throughput
from bench.session import Session

MEASUREMENTS: dict[str, Callable[[Session], None]] = {
    "limit": scale.limit,
    "startup": lifecycle.start_up,
    "connections": scale.connections,
    "throughput": throughput.librdkafka,
    "durable": throughput.durable,
    "sync": latency.synchronous,
    "latency": latency.fixed_rate,
    "java": throughput.java_tools,
    "partitions": scale.partitions,
    "recovery": lifecycle.recovery,
}
