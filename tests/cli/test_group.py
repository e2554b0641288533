"""`penstock group`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.testing import TestBroker, TestCluster, cluster
from tests.cli.command import Penstock
from tests.cli.test_topic import fresh

Filled = Callable[..., str]


@pytest.fixture
def topic(filled: Filled) -> str:
    return filled(*"abcde")


@pytest.fixture
def group(running_broker: TestBroker, topic: str) -> str:
    """A group that has committed three of the five records."""
    name = fresh("g")
    consumer = Consumer({"bootstrap.servers": running_broker.bootstrap, "group.id": name})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()
    return name


@pytest.fixture
def busy_group(penstock_command: Penstock, topic: str) -> Iterator[str]:
    """A group with one member that reads on and on."""
    name = fresh("g")
    member = penstock_command.start("consume", topic, "-g", name, "--follow")
    assert member.stdout is not None
    assert member.stdout.readline() == b"a\n"
    try:
        yield name
    finally:
        member.terminate()
        member.communicate(timeout=20)


def test_list(penstock_command: Penstock, group: str) -> None:
    listed = penstock_command.ok("group", "list", "--json").json["groups"]
    assert {"group": group, "state": "empty", "members": 0} in listed
    table = penstock_command.ok("group", "list").out
    assert [group, "empty", "0"] in [line.split() for line in table.splitlines()]


def test_describe_shows_the_lag(penstock_command: Penstock, group: str, topic: str) -> None:
    assert penstock_command.ok("group", "describe", group, "--json").json == {
        "group": group,
        "state": "empty",
        "assignor": None,
        "members": [],
        "partitions": [
            {
                "topic": topic,
                "partition": 0,
                "committed": 3,
                "end": 5,
                "lag": 2,
                "member_id": None,
                "client_id": None,
                "host": None,
            }
        ],
    }
    shown = penstock_command.ok("group", "describe", group).out.splitlines()
    assert shown[0] == f"{group}: empty, 0 members, 2 records behind"
    assert shown[2].split() == [topic, "0", "3", "5", "2", "-", "-"]


def test_describe_shows_the_members(
    penstock_command: Penstock, busy_group: str, topic: str
) -> None:
    described = penstock_command.ok("group", "describe", busy_group, "--json").json
    assert described["state"] == "stable"
    assert described["assignor"] == "range"
    (member,) = described["members"]
    assert member["client_id"] == "penstock-cli"
    assert member["partitions"] == [{"topic": topic, "partition": 0}]
    assert described["partitions"][0]["member_id"] == member["member_id"]


@pytest.mark.parametrize(
    ("options", "after"),
    [
        (["--to", "earliest"], 0),
        (["--to", "latest"], 5),
        (["--to", "4"], 4),
        (["--to", "-2"], 3),
        (["--to", "-1h"], 0),
        (["--to", "2100-01-01"], 5),
        (["--by", "-1"], 2),
        (["--by", "1"], 4),
        (["--by", "-100"], 0),
        (["--by", "100"], 5),
    ],
)
def test_reset(
    penstock_command: Penstock, group: str, topic: str, options: list[str], after: int
) -> None:
    moved = {"topic": topic, "partition": 0, "before": 3, "after": after}
    planned = penstock_command.ok("group", "reset", group, *options, "--dry-run", "--json").json
    assert planned == {"group": group, "dry_run": True, "partitions": [moved]}
    done = penstock_command.ok("group", "reset", group, *options, "--yes", "--json").json
    assert done == {"group": group, "dry_run": False, "partitions": [moved]}
    described = penstock_command.ok("group", "describe", group, "--json").json
    assert described["partitions"][0]["committed"] == after


def test_reset_shows_people_the_plan_first(
    penstock_command: Penstock, group: str, topic: str
) -> None:
    shown = penstock_command.ok("group", "reset", group, "--to", "earliest", "--dry-run").out
    assert [topic, "0", "3", "0"] in [line.split() for line in shown.splitlines()]
    assert shown.endswith("Nothing was changed (--dry-run).\n")
    assert "--yes" in penstock_command.fails("group", "reset", group, "--to", "earliest")
    described = penstock_command.ok("group", "describe", group, "--json").json
    assert described["partitions"][0]["committed"] == 3


def test_reset_gives_a_new_group_offsets_in_chosen_partitions(
    penstock_command: Penstock, filled: Filled
) -> None:
    topic, group = filled(partitions=3), fresh("g")
    lines = [{"value": "v", "partition": number} for number in (0, 1, 1, 2)]
    penstock_command.ok("produce", topic, "-f", "json", text="\n".join(map(json.dumps, lines)))
    done = penstock_command.ok(
        "group", "reset", group, "--topic", f"{topic}:0,1", "--to", "latest", "--yes", "--json"
    ).json
    assert [(m["partition"], m["before"], m["after"]) for m in done["partitions"]] == [
        (0, None, 1),
        (1, None, 2),
    ]
    described = penstock_command.ok("group", "describe", group, "--json").json
    assert [p["partition"] for p in described["partitions"]] == [0, 1]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], 2, "either --to or --by"),
        (["--to", "1", "--by", "1"], 2, "either --to or --by"),
        (["--to", "6"], 1, "Offset 6 is not in"),
        (["--to", "soon"], 2, "not a position"),
        (["--to", "1", "--topic", "no-such-topic"], 1, "There is no topic 'no-such-topic'"),
    ],
)
def test_reset_refuses_in_plain_words(
    penstock_command: Penstock, group: str, options: list[str], code: int, words: str
) -> None:
    assert words in penstock_command.fails("group", "reset", group, *options, "--yes", code=code)


def test_reset_of_nothing_asks_for_a_topic(penstock_command: Penstock, topic: str) -> None:
    group = fresh("g")
    assert "--topic" in penstock_command.fails("group", "reset", group, "--to", "latest", "-y")
    words = penstock_command.fails("group", "reset", group, "--by", "1", "-t", topic, "-y")
    assert "no offset" in words
    words = penstock_command.fails(
        "group", "reset", group, "--to", "0", "-t", f"{topic}:7", "-y", code=2
    )
    assert "has no partition 7" in words


def test_active_members_forbid_reset_and_delete(
    penstock_command: Penstock, busy_group: str
) -> None:
    for command in (["reset", busy_group, "--to", "earliest"], ["delete", busy_group]):
        words = penstock_command.fails("group", *command, "--yes")
        assert "active member" in words


def test_a_reset_group_reads_from_there(penstock_command: Penstock, group: str, topic: str) -> None:
    penstock_command.ok("group", "reset", group, "--by", "-1", "--yes")
    assert penstock_command.ok("consume", topic, "-g", group).out == "c\nd\ne\n"


def test_a_group_named_twice_is_deleted_once(
    penstock_command: Penstock, group: str, topic: str
) -> None:
    deleted = penstock_command.ok("group", "delete", group, group, "--yes", "--json").json
    assert deleted == {"groups": [{"group": group, "deleted": True}]}


def test_delete(penstock_command: Penstock, group: str) -> None:
    assert "--yes" in penstock_command.fails("group", "delete", group)
    deleted = penstock_command.ok("group", "delete", group, "--yes", "--json").json
    assert deleted == {"groups": [{"group": group, "deleted": True}]}
    for command in (["describe", group], ["delete", group, "--yes"]):
        words = penstock_command.fails("group", *command)
        assert f"There is no consumer group '{group}'." in words


def test_a_list_without_the_groups_of_a_broker_is_not_taken_for_whole() -> None:
    with cluster(2, lease_ttl_s=30) as c:
        command = Penstock(c.bootstrap)
        command.ok("group", "list")
        c.brokers[1].kill()
        assert "The list is not complete" in command.fails("group", "list")


def test_a_partition_without_a_leader_hides_only_its_own_lag() -> None:
    with cluster(2, lease_ttl_s=2) as c:
        topic = c.create_topic(partitions=2, replicas=1)
        lost, led = sorted((0, 1), key=lambda number: c.leader_of(topic, number).id)
        command = Penstock(c.bootstrap)
        command.ok("group", "reset", "g", "--topic", topic, "--to", "earliest", "--yes")
        c.leader_of(topic, lost).kill()
        c.wait_for(lambda: not _led(c, topic, lost), "the end of its leader")
        places = command.ok("group", "describe", "g", "--json").json["partitions"]
        assert {place["partition"]: place["lag"] for place in places} == {lost: None, led: 0}
        assert all(place["committed"] == 0 for place in places)
        command.ok("group", "delete", "g", "--yes")


def _led(c: TestCluster, topic: str, number: int) -> bool:
    known = c.partition(topic, number)
    return known is None or known.is_led
