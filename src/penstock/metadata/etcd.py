"""The metadata store of a cluster: etcd.

Everything lives under one key prefix of the etcd cluster, so that several Penstock clusters and others
can share it. The revision is etcd's own and counts the writes of all of them: it rises by one for each
transaction of ours, and by more if others write.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final, Self
from weakref import WeakSet

import grpc

from penstock.metadata.base import BaseStore
from penstock.metadata.errors import LeaseLost, StoreUnavailable
from penstock.metadata.etcd_client import EtcdClient, EtcdRefused
from penstock.metadata.etcd_config import EtcdConfig
from penstock.metadata.etcd_lease import EtcdLease
from penstock.metadata.etcd_messages import COMPARE_MOD, LEASE_TIME_TO_LIVE, RANGE, TXN, Message
from penstock.metadata.etcd_watch import EtcdWatch
from penstock.metadata.store import (
    CommitResult,
    Committed,
    Entry,
    Lease,
    Mismatch,
    Rejected,
    Snapshot,
    Transaction,
    Watch,
)

__all__ = ["EtcdConfig", "EtcdMetadataStore"]

_PAGE_KEYS_FIRST: Final = 200
_PAGE_KEYS_MAX: Final = 5_000
_PAGE_BYTES: Final = 4 * 1024 * 1024  # what a page should hold, judged by the one before
_ALL_ABOVE: Final = b"\0"  # as a range's end: no end
_COMPACTED: Final = "etcdserver: mvcc: required revision has been compacted"
_TOO_LARGE: Final = "etcdserver: request is too large"


class EtcdMetadataStore(BaseStore):
    """A `MetadataStore` on etcd. `now` is the clock of `Lease.expires_at`.

    A commit is sent to etcd at most once. `StoreUnavailable` from `commit` or `put` means that its outcome
    is unknown, unless the text says that nothing answered at all.
    """

    def __init__(self, config: EtcdConfig, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._client = EtcdClient(config)
        self._prefix = config.key_prefix.encode()
        self._now = now
        self._watches: WeakSet[EtcdWatch] = WeakSet()
        self._operations = 0  # under way
        self._idle = asyncio.Event()  # set while closing, when _operations is 0

    @classmethod
    async def open(cls, config: EtcdConfig, *, now: Callable[[], float] = time.monotonic) -> Self:
        """Connect. Raises `StoreUnavailable` if no endpoint answers or lets us in."""
        store = cls(config, now=now)
        try:
            await store.get("-")
        except BaseException:
            await store.close()
            raise
        return store

    # -- MetadataStore

    async def get(self, key: str) -> Entry | None:
        with self._operation():
            answer = await self._client.call(RANGE, RANGE.request(key=self._key(key)))
        return self._entry(answer.kvs[0]) if answer.kvs else None

    async def get_prefix(self, prefix: str) -> Snapshot:
        with self._operation():
            while True:
                try:
                    return await self._read_pages(prefix)
                except EtcdRefused as error:
                    if error.details != _COMPACTED:
                        raise
                # The first page's revision was compacted before the last page was read.

    async def commit(self, transaction: Transaction) -> CommitResult:
        with self._operation():
            try:
                answer = await self._client.call(TXN, self._request(transaction), once=True)
            except EtcdRefused as error:
                if error.code is grpc.StatusCode.NOT_FOUND:
                    raise LeaseLost(await self._lost_lease(transaction)) from error
                if error.details == _TOO_LARGE:
                    raise ValueError("the transaction is larger than etcd takes") from error
                raise
        revision = answer.header.revision
        if answer.succeeded:
            return Committed(revision=revision)
        mismatches = []
        for compare, response in zip(transaction.compares, answer.responses, strict=True):
            found = response.response_range.kvs
            actual = self._entry(found[0]) if found else None
            if compare.mod_revision != (actual.mod_revision if actual is not None else 0):
                mismatches.append(Mismatch(compare=compare, actual=actual))
        return Rejected(revision=revision, mismatches=tuple(mismatches))

    def watch(self, prefix: str, from_revision: int) -> Watch:
        self._check_open()
        if from_revision < 1:
            raise ValueError(f"from_revision {from_revision} is less than 1")
        watch = EtcdWatch(self._client, *self._range(prefix), from_revision, self._decode_key)
        self._watches.add(watch)
        return watch

    async def lease(self, ttl_s: int) -> Lease:
        if ttl_s < 1:
            raise ValueError(f"a lease of {ttl_s} s; at least 1")
        with self._operation():
            lease = EtcdLease(self._client, self._operation, self._now, ttl_s)
            await lease.grant()
        return lease

    # -- keys

    def _key(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def _range(self, prefix: str) -> tuple[bytes, bytes]:
        """The keys that start with `prefix`, as etcd's first key and the key after the last one."""
        first = self._key(prefix)
        if not first:
            return b"\0", _ALL_ABOVE
        return first, first[:-1] + bytes([first[-1] + 1])  # no byte of UTF-8 is 255

    def _decode_key(self, key: bytes) -> str:
        # Only a stranger can have written a key that is no text. It is shown, but cannot be read.
        return key[len(self._prefix) :].decode(errors="backslashreplace")

    def _entry(self, found: Message) -> Entry:
        return Entry(
            key=self._decode_key(found.key),
            value=found.value,
            create_revision=found.create_revision,
            mod_revision=found.mod_revision,
            lease_id=found.lease or None,
        )

    # -- reads and transactions

    async def _read_pages(self, prefix: str) -> Snapshot:
        first, end = self._range(prefix)
        entries: list[Entry] = []
        limit, revision = _PAGE_KEYS_FIRST, 0  # revision 0: the newest, which the first page tells
        while True:
            request = RANGE.request(key=first, range_end=end, limit=limit, revision=revision)
            answer = await self._client.call(RANGE, request)
            revision = revision or answer.header.revision
            entries += map(self._entry, answer.kvs)
            if not answer.more:
                return Snapshot(entries=tuple(entries), revision=revision)
            first = answer.kvs[-1].key + b"\0"
            mean_bytes = answer.ByteSize() // len(answer.kvs) + 1
            limit = max(1, min(_PAGE_KEYS_MAX, _PAGE_BYTES // mean_bytes))

    def _request(self, transaction: Transaction) -> Message:
        """The transaction in etcd's terms. If it fails, etcd reads what was compared instead."""
        request = TXN.request()
        for compare in transaction.compares:
            key = self._key(compare.key)
            request.compare.add(target=COMPARE_MOD, key=key, mod_revision=compare.mod_revision)
            request.failure.add().request_range.key = key
        for put in transaction.puts:
            operation = request.success.add().request_put
            operation.key, operation.value = self._key(put.key), put.value
            operation.lease = put.lease_id or 0
        for delete in transaction.deletes:
            operation = request.success.add().request_delete_range
            if delete.prefix:
                operation.key, operation.range_end = self._range(delete.key)
            else:
                operation.key = self._key(delete.key)
        return request

    async def _lost_lease(self, transaction: Transaction) -> int:
        """Which of the transaction's leases has ended: etcd says only that one has."""
        lease_ids = list({put.lease_id: None for put in transaction.puts if put.lease_id})
        for lease_id in lease_ids[:-1]:
            with contextlib.suppress(StoreUnavailable):
                request = LEASE_TIME_TO_LIVE.request(ID=lease_id)
                answer = await self._client.call(LEASE_TIME_TO_LIVE, request)
                if answer.TTL <= 0:
                    return lease_id
        return lease_ids[-1]

    # -- the end

    @contextlib.contextmanager
    def _operation(self) -> Iterator[None]:
        """Around all that needs the connections: `close` waits for it."""
        self._check_open()
        self._operations += 1
        try:
            yield
        finally:
            self._operations -= 1
            if self._closing is not None and self._operations == 0:
                self._idle.set()

    async def _close(self) -> None:
        if self._operations > 0:
            await self._idle.wait()  # each of them has a timeout
        await asyncio.gather(*(watch.end() for watch in list(self._watches)))
        await self._client.close()
