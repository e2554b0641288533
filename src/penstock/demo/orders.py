"""A shop's orders, as its till would send them: mostly right, some late, some twice, a few broken.

The shop's clock is fast: a second here is a minute there, so that a demo sees many minutes. Every record
is made by an order generator with a seed, and counted by its kind.
"""

from __future__ import annotations

import datetime
import itertools
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

SHOP_SECONDS_PER_SECOND: Final = 60
DUPLICATES: Final = 0.03
LATE: Final = 0.05  # by up to LATE_S_MAX: still counted in their minute
TOO_LATE: Final = 0.004  # by TOO_LATE_S: nobody waits for these
MALFORMED: Final = 0.002
LATE_S_MAX: Final = 8 * 60
TOO_LATE_S: Final = 45 * 60
_AGO_MAX: Final = 4_000  # a duplicate comes at most this many orders behind its original

_GOODS: Final = (
    ("Espresso beans 1 kg", 18.90), ("Pour-over kettle", 54.00), ("Paper filters", 4.50),
    ("Burr grinder", 129.00), ("Ceramic cup", 12.00), ("Milk pitcher", 21.50), ("Scale", 39.00),
)  # fmt: skip
_COUNTRIES: Final = {"DE": 24, "FR": 19, "IT": 16, "ES": 12, "NL": 9, "SE": 6, "PT": 5, "NO": 4}
_VARIETY: Final = 4_000  # different orders; only number and time are new each time


@dataclass(slots=True)
class Made:
    """How many records of each kind were made. `good` has the late ones that count, too."""

    good: int = 0
    late: int = 0  # of the good ones
    too_late: int = 0
    duplicates: int = 0
    malformed: int = 0

    @property
    def all(self) -> int:
        return self.good + self.too_late + self.duplicates + self.malformed


@dataclass(slots=True)
class Shop:
    """Makes records as (key, value). `opened` is the shop's time at the first one."""

    opened: datetime.datetime
    seed: int = 7
    sends_too_late: bool = False  # nothing is too late before somebody has read anything
    made: Made = field(default_factory=Made)
    _dice: random.Random = field(init=False)
    _sold: list[tuple[bytes, str]] = field(init=False)
    _recent: deque[tuple[bytes, bytes]] = field(init=False)
    _numbers: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._sold = [_sale(self._dice) for _ in range(_VARIETY)]
        self._recent = deque(maxlen=_AGO_MAX)
        self._numbers = itertools.count(1)

    def record(self, open_for_s: float) -> tuple[bytes, bytes]:
        """The next record, `open_for_s` after the first one by our clock."""
        dice = self._dice.random()
        if dice < MALFORMED:
            self.made.malformed += 1
            return self._malformed(open_for_s)
        dice -= MALFORMED
        if dice < DUPLICATES and self._recent:
            self.made.duplicates += 1
            return self._dice.choice(self._recent)
        dice -= DUPLICATES
        behind_s = self._dice.random() * 5  # networks are never quite in order
        if dice < TOO_LATE and self.sends_too_late:
            self.made.too_late += 1
            return self._order(open_for_s, TOO_LATE_S)
        if dice < TOO_LATE + LATE:
            self.made.late += 1
            behind_s = self._dice.uniform(60, LATE_S_MAX)
        self.made.good += 1
        order = self._order(open_for_s, behind_s)
        self._recent.append(order)
        return order

    def closing(self, open_for_s: float) -> tuple[bytes, bytes]:
        """A record so much later than all others that every minute before it is over.

        Windows close when the stream moves on. At its end somebody has to say that it did.
        """
        return self._order(open_for_s, -60 * 60)

    def _order(self, open_for_s: float, behind_s: float) -> tuple[bytes, bytes]:
        number = next(self._numbers)
        customer, rest = self._sold[number % _VARIETY]
        at = self.opened + datetime.timedelta(
            seconds=open_for_s * SHOP_SECONDS_PER_SECOND - behind_s
        )
        text = f'{{"order_id":"o-{number:08d}","at":"{at:%Y-%m-%dT%H:%M:%S}Z",{rest}'
        return customer, text.encode()

    def _malformed(self, open_for_s: float) -> tuple[bytes, bytes]:
        key, value = self._order(open_for_s, 0)
        kind = self._dice.randrange(3)
        if kind == 0:
            return key, value[: len(value) // 2]  # torn
        if kind == 1:
            return key, value.replace(b'"amount":', b'"amount":-')
        return key, b"<html><body>502 Bad Gateway</body></html>"


def _sale(dice: random.Random) -> tuple[bytes, str]:
    """A customer as the key, and what they bought as the rest of a JSON object."""
    product, price = dice.choice(_GOODS)
    quantity = dice.choice((1, 1, 1, 2, 2, 3))
    customer = f"c-{dice.randint(1, 5000):04d}"
    (country,) = dice.choices(list(_COUNTRIES), list(_COUNTRIES.values()))
    return customer.encode(), (
        f'"customer":"{customer}","country":"{country}","product":"{product}",'
        f'"quantity":{quantity},"amount":{price * quantity:.2f}}}'
    )
