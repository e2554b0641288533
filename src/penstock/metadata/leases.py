"""The leases of an embedded store, as pure state: every method is told the time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from penstock.metadata.errors import LeaseLost

__all__ = ["LeaseTable"]


@dataclass(slots=True, kw_only=True)
class _Term:
    ttl_s: int
    expires_at: float


class LeaseTable:
    """The leases that live. A lease is over at its `expires_at`, whether anyone looked or not."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._terms: dict[int, _Term] = {}

    def __contains__(self, lease_id: object) -> bool:
        """Whether the lease was alive when `expire` was last called: call that first."""
        return lease_id in self._terms

    def grant(self, ttl_s: int, now: float) -> int:
        if ttl_s < 1:
            raise ValueError(f"a lease of {ttl_s} s; at least 1")
        lease_id = next(self._ids)
        self._terms[lease_id] = _Term(ttl_s=ttl_s, expires_at=now + ttl_s)
        return lease_id

    def keep_alive(self, lease_id: int, now: float) -> float:
        """Extend the lease and return its new end. Raises `LeaseLost` if it is over."""
        term = self._terms.get(lease_id)
        if term is None or term.expires_at <= now:
            raise LeaseLost(lease_id)
        term.expires_at = now + term.ttl_s
        return term.expires_at

    def end(self, lease_id: int) -> None:
        self._terms.pop(lease_id, None)

    def expire(self, now: float) -> list[int]:
        """Remove and return the leases that are over."""
        due = [lease_id for lease_id, term in self._terms.items() if term.expires_at <= now]
        for lease_id in due:
            del self._terms[lease_id]
        return due

    def next_expiry(self) -> float | None:
        return min((term.expires_at for term in self._terms.values()), default=None)
