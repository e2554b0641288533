"""Names that the parts of the demo share. A query, its consumer group and its topic have the same one."""

from __future__ import annotations

from typing import Final

ORDERS: Final = "orders"
PER_MINUTE: Final = "orders-per-minute"
REJECTED: Final = "orders-rejected"
PARTITIONS: Final = {ORDERS: 4, PER_MINUTE: 1, REJECTED: 1}
