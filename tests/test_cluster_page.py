"""docs/CLUSTER.md and docker-compose.yml name settings that there are, with their defaults."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from penstock.settings import BrokerConfig

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "CLUSTER.md").read_text(encoding="utf-8")
KNOWN = {item.name: item.default for item in fields(BrokerConfig)}
ONLY_IN_A_CLUSTER = [
    name
    for name in KNOWN
    if name.startswith(("etcd", "lease_", "replica_", "catch_up_", "acks_"))
    or name == "default_replication_factor"
]


def documented() -> dict[str, str]:
    """The rows of the table of settings: name and default."""
    table = PAGE.partition("### Settings that matter in a cluster")[2].partition("###")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ?(.*?) ?\|", table, flags=re.MULTILINE))


def test_the_page_lists_every_setting_of_a_cluster() -> None:
    assert list(documented()) == ONLY_IN_A_CLUSTER


@pytest.mark.parametrize("name", ONLY_IN_A_CLUSTER)
def test_the_page_has_the_default(name: str) -> None:
    assert KNOWN[name] is not MISSING
    assert documented()[name] == str(KNOWN[name])


def test_the_example_file_is_a_valid_configuration(tmp_path: Path) -> None:
    example = PAGE.partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "penstock.toml"
    file.write_text(example, encoding="utf-8")
    config = BrokerConfig.load(file=str(file), environment={})
    assert config.etcd.count(",") == 2
    assert config.topic_defaults == {"min.insync.replicas": "2"}


@pytest.fixture
def compose() -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


def test_brokers_in_the_compose_file_have_valid_settings_of_their_own(compose: Any) -> None:
    brokers = {name: it for name, it in compose["services"].items() if name.startswith("broker")}
    assert len(brokers) == 3
    ids = set()
    for name, service in brokers.items():
        variables = service["environment"]
        unknown = {key for key in variables if key.removeprefix("PENSTOCK_").lower() not in KNOWN}
        assert not unknown
        config = BrokerConfig.load(environment=variables)
        assert config.advertise_addr == f"{name}:9092"
        assert {part.partition(":")[0] for part in config.etcd.split(",")} <= set(
            compose["services"]
        )
        ids.add(config.broker_id)
    assert len(ids) == 3


def test_services_in_the_compose_file_refer_to_what_is_there(compose: Any) -> None:
    stages = set(
        re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    )
    used = set()
    for service in compose["services"].values():
        assert service["build"]["target"] in stages
        assert service["healthcheck"]["test"][0] == "CMD"
        assert set(service.get("depends_on", {})) <= set(compose["services"])
        used |= {volume.partition(":")[0] for volume in service["volumes"]}
    assert used == set(compose["volumes"])
    peers = {
        part.partition("=")[0]
        for part in compose["services"]["etcd-1"]["environment"]["ETCD_INITIAL_CLUSTER"].split(",")
    }
    names = {
        service["environment"]["ETCD_NAME"]
        for name, service in compose["services"].items()
        if name.startswith("etcd")
    }
    assert peers == names


def test_every_command_on_the_page_exists() -> None:
    from typer.main import get_command

    from penstock.cli.app import app

    top: Any = get_command(app)
    for words in re.findall(r"penstock (cluster \w+|topic \w+|serve|group \w+)", PAGE):
        command = top
        for word in words.split():
            command = command.commands[word]
