"""Bytes of the settings topic (A: batching can be switched at run time)."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.settings import (
    SettingValue,
    decode,
    encode,
    kind_of,
    subscription_of,
    subscription_setting,
)
from tests.support.schemas.wire import ROUND_TRIPS, TOPICS

VALUES: list[tuple[SettingValue, str]] = [
    (True, "0801 7809"),
    (False, "0800 7809"),
    (5, "1005 7809"),
    (0, "1000 7809"),
    (1, "1001 7809"),
    (-1, "10ffffffffffffffffff01 7809"),
    ("x", "1a0178 7809"),
    ("", "1a00 7809"),
]


@pytest.mark.parametrize(("value", "hex_bytes"), VALUES, ids=repr)
def test_setting_bytes(value: SettingValue, hex_bytes: str):
    """A switch, a number and a text are told apart, also where Python calls them equal."""
    key, data = encode("log.batching", value, at_ms=9)
    assert (key, data) == (b"log.batching", bytes.fromhex(hex_bytes))
    name, read = decode(key, data)
    assert (name, read, type(read)) == ("log.batching", value, type(value))


def test_no_value_restores_the_default():
    """A tombstone under the setting's name is read as the default."""
    assert encode("log.batching", None, at_ms=9) == (b"log.batching", None)
    assert decode(b"log.batching", None) == ("log.batching", None)


def test_bytes_of_a_replicated_subscription():
    """I: topic and group are in the name, in this order; the switch is a flag."""
    name = subscription_setting("orders", "billing/eu")
    key, data = encode(name, True, at_ms=9)
    assert (key, data) == (b"subscription/orders/billing/eu", bytes.fromhex("0801 7809"))
    assert kind_of(name) is bool
    assert subscription_of(decode(key, data)[0]) == ("orders", "billing/eu")


def test_bytes_of_a_pattern_of_replicated_groups():
    """I15: as the names of a topic and a group; earlier versions take it for no setting."""
    name = subscription_setting("orders-[ab]?*", "billing*")
    key, data = encode(name, False, at_ms=9)
    assert (key, data) == (b"subscription/orders-[ab]?*/billing*", bytes.fromhex("0800 7809"))
    assert subscription_of(decode(key, data)[0]) == ("orders-[ab]?*", "billing*")


@pytest.mark.parametrize("topic", ["..", ".", "a!", "a]", "or ders", "a*\n"])
def test_a_setting_of_no_topic_is_none(topic: str):
    """I15: a broker refuses a whole question with such a name; without a wildcard it is a name."""
    assert subscription_of(subscription_setting(topic, "g")) is None


@ROUND_TRIPS
@given(TOPICS.filter(lambda topic: "/" not in topic), st.text(min_size=1, max_size=9))
def test_every_replicated_subscription_is_read_back(topic: str, group: str):
    """I: a group's name may hold anything, a topic's no slash."""
    name, value = decode(*encode(subscription_setting(topic, group), False, at_ms=1))
    assert (subscription_of(name), value) == ((topic, group), False)


@pytest.mark.parametrize(
    "name",
    [
        "subscription",
        "subscription/",
        "subscription/t",
        "subscription//g",
        "x/t/g",
        "subscription/t t*/g",
    ],
)
def test_what_names_no_subscription_is_another_setting(name: str):
    """I: without a topic and a group nothing is replicated."""
    assert subscription_of(name) is None
    assert kind_of(name) is None


@ROUND_TRIPS
@given(TOPICS, st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9))
def test_every_setting_is_read_back(name: str, value: SettingValue):
    """Encoding loses nothing of a setting."""
    assert decode(*encode(name, value, at_ms=1)) == (name, value)


@pytest.mark.parametrize(
    ("key", "hex_bytes"),
    [(None, "0801"), (b"", "0801"), (b"\xff", "0801"), (b"a", "ff"), (b"a", ""), (b"a", "7200")],
    ids=["no key", "empty key", "name not UTF-8", "garbage", "no value", "later kind of value"],
)
def test_what_is_no_setting_is_an_error(key: bytes | None, hex_bytes: str):
    """A record of the settings topic that cannot be understood is refused."""
    with pytest.raises(DecodeError):
        decode(key, bytes.fromhex(hex_bytes))
