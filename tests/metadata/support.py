"""Powers over an etcd."""

from __future__ import annotations

from penstock.metadata.etcd_client import EtcdClient
from penstock.metadata.etcd_config import EtcdConfig
from penstock.metadata.etcd_messages import COMPACT, RANGE


async def compact(endpoints: tuple[str, ...]) -> None:
    """Have etcd forget all history up to now."""
    client = EtcdClient(EtcdConfig(endpoints=endpoints))
    newest = (await client.call(RANGE, RANGE.request(key=b"-"))).header.revision
    await client.call(COMPACT, COMPACT.request(revision=newest, physical=True))
    await client.close()
