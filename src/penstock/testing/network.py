"""The network of a test's cluster: every broker is reached through a proxy, and so is etcd by each.

Who connects is known by the address it comes from: brokers connect from the one they listen on, which is
127.0.0.10 for broker 0, 127.0.0.11 for broker 1 and so on; clients come from 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.testing.proxy import Proxies, Proxy

CLIENTS: Final = "127.0.0.1"
_FIRST_HOST: Final = 10


class PartitionableNetwork:
    """Cuts are symmetric. What they hold back arrives when they heal. Not thread-safe."""

    def __init__(self, brokers: int, etcd_endpoints: Sequence[str]) -> None:
        self._loop = Proxies()
        self._ids = range(brokers)
        self._fronts = [self._loop.add(Proxy()) for _ in self._ids]
        self._to_etcd = [
            [self._loop.add(Proxy(endpoint)) for endpoint in etcd_endpoints] for _ in self._ids
        ]
        self._cut_pairs: set[frozenset[int]] = set()
        self._cut_from_etcd: set[int] = set()
        self._cut_from_clients: set[int] = set()

    def host(self, broker: int) -> str:
        """What a broker listens on and connects from."""
        return f"127.0.0.{_FIRST_HOST + broker}"

    def address(self, broker: int) -> str:
        """What a broker tells others to connect to."""
        return self._fronts[broker].address

    def set_target(self, broker: int, address: str) -> None:
        """Where a broker really listens."""
        self._fronts[broker].target = address

    def etcd_endpoints(self, broker: int) -> tuple[str, ...]:
        """What a broker takes for etcd."""
        return tuple(front.address for front in self._to_etcd[broker])

    def cut(self, one: int, other: int, *, reset: bool = False) -> None:
        """Nothing passes between two brokers."""
        assert one != other, "a broker can not be cut off from itself"
        self._cut_pairs.add(frozenset((one, other)))
        self._apply(reset=reset)

    def isolate_from_etcd(self, broker: int, *, reset: bool = False) -> None:
        """Nothing passes between a broker and etcd."""
        self._cut_from_etcd.add(broker)
        self._apply(reset=reset)

    def isolate(self, broker: int, *, clients: bool = False, reset: bool = False) -> None:
        """Nothing passes between a broker and etcd or other brokers; with `clients`, or clients."""
        self._cut_pairs |= {frozenset((broker, other)) for other in self._ids if other != broker}
        self._cut_from_etcd.add(broker)
        if clients:
            self._cut_from_clients.add(broker)
        self._apply(reset=reset)

    def split(self, *sides: Iterable[int], reset: bool = False) -> None:
        """Nothing passes between brokers of different sides; etcd is reached by those of the first."""
        groups = [set(side) for side in sides]
        for number, group in enumerate(groups):
            for other in groups[number + 1 :]:
                self._cut_pairs |= {frozenset((a, b)) for a in group for b in other}
                self._cut_from_etcd |= other
        self._apply(reset=reset)

    def heal(self) -> None:
        """Everything passes."""
        self._cut_pairs.clear()
        self._cut_from_etcd.clear()
        self._cut_from_clients.clear()
        self._apply(reset=False)

    def close(self) -> None:
        self._loop.close()

    def _apply(self, *, reset: bool) -> None:
        self._loop.do(lambda: self._set_silences(reset=reset))

    def _set_silences(self, *, reset: bool) -> None:
        for broker, front in enumerate(self._fronts):
            hosts = {self.host(other) for other in self._ids if {broker, other} in self._cut_pairs}
            if broker in self._cut_from_clients:
                hosts.add(CLIENTS)
            front.silenced = frozenset(hosts)
            if reset:
                front.cut(front.silenced)
        for broker, fronts in enumerate(self._to_etcd):
            for front in fronts:
                front.silent = broker in self._cut_from_etcd
                if reset and front.silent:
                    front.cut()
