"""Settings, as they are described and changed."""

from __future__ import annotations

from dataclasses import fields

import pytest

from penstock.broker.topic_configs import (
    BROKER_NAMES,
    OPTION_NAMES,
    ConfigChange,
    Operation,
    Source,
    apply_changes,
    describe_broker,
    describe_topic,
)
from penstock.errors import ApiError, ErrorCode
from penstock.settings import TOPIC_SETTINGS, BrokerConfig

POLICY = "cleanup.policy"


def test_every_translated_name_is_a_setting() -> None:
    assert set(BROKER_NAMES) <= set(TOPIC_SETTINGS)
    assert set(OPTION_NAMES) <= {item.name for item in fields(BrokerConfig)}


def test_no_two_broker_settings_have_one_name() -> None:
    names = [entry.name for entry in describe_broker(BrokerConfig())]
    assert len(names) == len(set(names))


def test_the_value_in_force_is_the_first_synonym() -> None:
    defaults, overrides = {"flush.ms": "2", "segment.ms": "3"}, {"flush.ms": "1"}
    entries = {entry.name: entry for entry in describe_topic(defaults, overrides)}
    assert [(s.value, s.source) for s in entries["flush.ms"].synonyms] == [
        ("1", Source.TOPIC),
        ("2", Source.BROKER_FILE),
        ("9223372036854775807", Source.DEFAULT),
    ]
    assert (entries["flush.ms"].value, entries["flush.ms"].source) == ("1", Source.TOPIC)
    assert (entries["segment.ms"].value, entries["segment.ms"].source) == ("3", Source.BROKER_FILE)


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        ("a", Operation.APPEND, "b", "a,b"),
        ("a", Operation.APPEND, "a", "a"),
        ("a", Operation.APPEND, " b , c,b", "a,b,c"),
        ("a,b,c", Operation.SUBTRACT, "b", "a,c"),
        ("a", Operation.SUBTRACT, "b", "a"),
        ("a", Operation.SUBTRACT, "a", ""),
        (None, Operation.APPEND, "b", "delete,b"),
    ],
)
def test_lists_are_edited_by_element(
    before: str | None, operation: int, value: str, after: str
) -> None:
    overrides = {} if before is None else {POLICY: before}
    change = ConfigChange(name=POLICY, operation=operation, value=value)
    assert apply_changes(overrides, {}, [change]) == {POLICY: after}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("flush.ms", Operation.APPEND, "1"), ErrorCode.invalid_config),
        (("no.such", Operation.APPEND, "1"), ErrorCode.invalid_config),
        ((POLICY, Operation.APPEND, None), ErrorCode.invalid_request),
        ((POLICY, 4, "x"), ErrorCode.invalid_request),
    ],
)
def test_what_can_not_be_changed_so(change: tuple[str, int, str | None], code: ErrorCode) -> None:
    name, operation, value = change
    with pytest.raises(ApiError) as caught:
        apply_changes({}, {}, [ConfigChange(name=name, operation=operation, value=value)])
    assert caught.value.code is code
