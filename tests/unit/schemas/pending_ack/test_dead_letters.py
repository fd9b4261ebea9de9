"""G2: the headers of dead letters, as bytes that stay readable."""

import pytest

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.headers import TXN
from stilltide.schemas.pending_ack.dead_letters import (
    DeadLetterHeaders,
    dead_letter_topic,
    decode,
    encode,
    of_application,
)
from stilltide.schemas.replication.origins import ORIGIN, Incarnation, OriginStamp
from stilltide.schemas.values import ClusterName, Offset, TopicPartition

LETTER = DeadLetterHeaders(
    TopicPartition("orders", 3), Offset(17), 1_700_000_000_123, "billing", 5, "ValueError: né"
)
GOLDEN = [
    ("dead-letter.topic", b"orders"),
    ("dead-letter.partition", b"3"),
    ("dead-letter.offset", b"17"),
    ("dead-letter.timestamp", b"1700000000123"),
    ("dead-letter.group", b"billing"),
    ("dead-letter.deliveries", b"5"),
    ("dead-letter.error", b"ValueError: n\xc3\xa9"),
]


def test_golden_headers():
    """The names and the form of the values are part of the format."""
    assert encode(LETTER) == GOLDEN
    assert decode(GOLDEN) == LETTER
    without_time = [it for it in GOLDEN if it[0] != "dead-letter.timestamp"]
    assert encode(LETTER._replace(timestamp_ms=None)) == without_time
    assert decode(without_time) == LETTER._replace(timestamp_ms=None)


@pytest.mark.parametrize(
    ("timestamp_ms", "read"), [(0, 0), (-1, None), (-5000, -5000), (-(2**63) + 1, -(2**63) + 1)]
)
def test_every_timestamp_that_kafka_has_is_read_back(timestamp_ms: int, read: int | None):
    """-1 means none; an earlier version has written it as a number, and then it means none, too."""
    headers = encode(LETTER._replace(timestamp_ms=timestamp_ms))
    assert decode(headers) == LETTER._replace(timestamp_ms=read)
    old = [(n, b"%d" % timestamp_ms if n == "dead-letter.timestamp" else v) for n, v in GOLDEN]
    assert decode(old) == LETTER._replace(timestamp_ms=read)


def test_the_default_topic_is_pulsars():
    """Topic, group, and a suffix."""
    assert dead_letter_topic("orders", "billing") == "orders-billing-DLQ"


def test_a_record_without_such_headers_is_no_dead_letter():
    """None, not an error: another program may write to the topic."""
    assert decode(None) is None
    assert decode([("h", b"1")]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", b"a b"),
        ("topic", None),
        ("topic", b"\xff"),
        ("partition", b"-1"),
        ("partition", b"2147483648"),
        ("offset", b"x"),
        ("offset", b"9223372036854775808"),
        ("offset", b"1" * 100_000),
        ("timestamp", b""),
        ("timestamp", b"-"),
        ("timestamp", b"--1"),
        ("deliveries", None),
    ],
)
def test_headers_of_another_program_are_an_error_that_names_the_header(
    name: str, value: bytes | None
):
    """No value reaches a command that it could lead astray."""
    headers = [(f"dead-letter.{name}", value) if it[0].endswith(name) else it for it in GOLDEN]
    with pytest.raises(DecodeError, match=name):
        decode(headers)


def test_only_the_applications_headers_are_sent_again():
    """Neither the transaction, nor the origin that a link wrote, nor those of a dead letter."""
    stamp = OriginStamp(Incarnation(ClusterName("a"), bytes(8)))
    own = [("h", b"1"), (ORIGIN, b"mine"), ("h", None)]
    headers = [(TXN, bytes(16)), *stamp.headers(own, Offset(7)), *GOLDEN]
    assert of_application(headers) == own
