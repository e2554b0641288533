"""Who may talk to etcd: TLS, users and passwords, tokens that end."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.metadata.errors import StoreUnavailable
from penstock.metadata.etcd import EtcdConfig, EtcdMetadataStore
from penstock.metadata.store import Delete, Transaction
from penstock.testing.etcd import KILL_REST_S, EtcdCluster, TlsFiles, etcd

if TYPE_CHECKING:
    from tests.metadata.conftest import Reader

TOKEN_TTL_S = 1


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates")
    return TlsFiles.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls_config(tls_files: TlsFiles) -> Iterator[EtcdConfig]:
    with etcd(tls=tls_files) as cluster:
        yield EtcdConfig(
            endpoints=cluster.endpoints,
            ca_file=str(tls_files.ca),
            cert_file=str(tls_files.cert),
            key_file=str(tls_files.key),
            request_timeout_s=0.5,
        )


class TestTls:
    async def test_the_store_works_over_tls_with_a_client_certificate(
        self, tls_config: EtcdConfig, read: Reader
    ) -> None:
        async with await EtcdMetadataStore.open(tls_config) as store:
            lease = await store.lease(60)
            at = await store.put("k", b"v", lease=lease)
            async with aclosing(store.watch("k", at)) as watch:
                assert [event.value for event in await read(watch, 1)] == [b"v"]
            await lease.keep_alive()
            await lease.revoke()

    async def test_a_name_is_checked_as_well_as_an_address(self, tls_config: EtcdConfig) -> None:
        port = tls_config.endpoints[0].rpartition(":")[2]
        async with await EtcdMetadataStore.open(
            replace(tls_config, endpoints=(f"localhost:{port}",))
        ):
            pass

    async def test_an_etcd_of_another_authority_is_not_trusted(
        self, tls_config: EtcdConfig, tmp_path: Path
    ) -> None:
        stranger = TlsFiles.make(tmp_path)
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate|handshake"):
            await EtcdMetadataStore.open(replace(tls_config, ca_file=str(stranger.ca)))

    async def test_without_a_client_certificate_or_tls_there_is_no_way_in(
        self, tls_config: EtcdConfig
    ) -> None:
        for poor in (
            replace(tls_config, cert_file=None, key_file=None),
            replace(tls_config, cert_file=None, key_file=None, ca_file=None),
        ):
            with pytest.raises(StoreUnavailable, match=tls_config.endpoints[0]):
                await EtcdMetadataStore.open(poor)


def ask(cluster: EtcdCluster, path: str, **fields: Any) -> None:
    request = urllib.request.Request(
        f"http://{cluster.endpoints[0]}/v3/auth/{path}", json.dumps(fields).encode()
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        answer.read()


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    """An etcd where user `penstock` may read and write under `penstock/` and nowhere else."""
    with etcd(flags={"auth-token-ttl": str(TOKEN_TTL_S), "bcrypt-cost": "4"}) as cluster:
        first, end = (base64.b64encode(key).decode() for key in (b"penstock/", b"penstock0"))
        ask(cluster, "user/add", name="root", password="root")
        ask(cluster, "user/grant", user="root", role="root")
        ask(cluster, "role/add", name="broker")
        may = {"permType": "READWRITE", "key": first, "range_end": end}
        ask(cluster, "role/grant", name="broker", perm=may)
        ask(cluster, "user/add", name="penstock", password="hunter2")
        ask(cluster, "user/grant", user="penstock", role="broker")
        ask(cluster, "enable")
        yield cluster


@pytest.fixture
def config(cluster: EtcdCluster) -> EtcdConfig:
    return EtcdConfig(
        endpoints=cluster.endpoints, user="penstock", password="hunter2", request_timeout_s=5
    )


class TestPassword:
    async def test_the_store_works_with_a_password(self, config: EtcdConfig, read: Reader) -> None:
        async with await EtcdMetadataStore.open(config) as store:
            lease = await store.lease(60)
            at = await store.put("k", b"v", lease=lease)
            async with aclosing(store.watch("k", at)) as watch:
                assert [event.value for event in await read(watch, 1)] == [b"v"]
            await lease.keep_alive()
            await lease.revoke()

    async def test_a_wrong_password_is_refused_at_once_by_name(self, config: EtcdConfig) -> None:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="does not let user 'penstock' in"):
            await EtcdMetadataStore.open(replace(config, password="wrong"))
        assert time.monotonic() - began < 2

    async def test_no_password_is_refused_at_once(self, config: EtcdConfig) -> None:
        with pytest.raises(StoreUnavailable, match="user name is empty"):
            await EtcdMetadataStore.open(replace(config, user=None, password=None))

    async def test_what_the_user_may_not_touch_is_refused(
        self, config: EtcdConfig, read: Reader
    ) -> None:
        config = replace(config, key_prefix="elsewhere/")
        with pytest.raises(StoreUnavailable, match="permission denied"):
            await EtcdMetadataStore.open(config)
        async with EtcdMetadataStore(config) as store:
            with pytest.raises(StoreUnavailable, match="permission denied"):
                await store.put("k", b"")
            with pytest.raises(StoreUnavailable, match="permission denied"):
                await read(store.watch("k", 1), 1)

    @pytest.mark.parametrize("how", ["by its age", "by a restart of etcd"])
    async def test_a_token_that_ended_is_renewed_and_nobody_notices(
        self, config: EtcdConfig, cluster: EtcdCluster, read: Reader, how: str
    ) -> None:
        async with await EtcdMetadataStore.open(config) as store:
            lease = await store.lease(60)
            at = await store.put("k", b"", lease=lease)
            token = store._client._token
            if how == "by its age":
                await asyncio.sleep(TOKEN_TTL_S + 1.2)  # etcd looks once a second
            else:
                await asyncio.sleep(KILL_REST_S)
                cluster.kill()
                cluster.start()
                while await store.get("k") is None:
                    pass
            watch = store.watch("k", at)
            commits = [store.put(f"k{n}", b"") for n in range(30)]
            await asyncio.gather(*commits, lease.keep_alive())
            assert how != "by its age" or token != store._client._token
            assert len(await read(watch, 31)) == 31
            await lease.revoke()
            await store.commit(Transaction(deletes=(Delete(key="", prefix=True),)))

    async def test_a_password_for_an_etcd_that_asks_for_none_does_no_harm(self) -> None:
        with etcd() as open_house:
            config = EtcdConfig(endpoints=open_house.endpoints, user="penstock", password="x")
            async with await EtcdMetadataStore.open(config) as store:
                await store.put("k", b"")
