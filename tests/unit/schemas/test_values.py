"""Identities, placement and the topics they place data in."""

import pytest
from hypothesis import given

from stilltide.schemas.errors import DecodeError, StilltideError
from stilltide.schemas.topics import ENTRY_BYTES_MAX, is_topic_name, system_partition, system_topics
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.schemas.wire import ROUND_TRIPS, U64


def test_txn_id_bytes():
    """A transaction id is coordinator, then sequence, 8 bytes each, big-endian."""
    txn = TxnId(1, 258)
    assert txn.to_bytes() == bytes.fromhex("0000000000000001 0000000000000102")
    assert str(txn) == "1:258"


@ROUND_TRIPS
@given(U64, U64)
def test_every_txn_id_is_read_back(coordinator: int, sequence: int):
    """Encoding loses nothing of a transaction id, and keeps the order of ids."""
    txn = TxnId(coordinator, sequence)
    assert TxnId.from_bytes(txn.to_bytes()) == txn
    assert (txn.to_bytes() < TxnId(1, 1).to_bytes()) == (txn < TxnId(1, 1))


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_txn_id_of_another_length_is_an_error(size: int):
    """16 bytes, neither more nor less."""
    with pytest.raises(DecodeError, match=f"16 bytes, not {size}"):
        TxnId.from_bytes(bytes(size))


@pytest.mark.parametrize(
    ("topic", "partition", "count", "placed"),
    [
        ("orders", 0, 8, 6),
        ("orders", 1, 8, 0),
        ("payments", 0, 8, 5),
        ("é", 0, 16, 14),
        ("t", 3, 1, 0),
    ],
)
def test_placement_is_stable(topic: str, partition: int, count: int, placed: int):
    """A data partition's system partition never changes: markers already lie there."""
    assert system_partition(TopicPartition(topic, partition), count) == placed


def test_placement_spreads():
    """A thousand data partitions reach every system partition, none far above its share."""
    placed = [system_partition(TopicPartition("orders", p), 16) for p in range(1000)]
    shares = [placed.count(n) for n in range(16)]
    assert min(shares) > 0
    assert max(shares) < 2 * 1000 / 16


def test_system_topics_are_kept_as_their_readers_need():
    """Logs are kept for ever and trimmed by hand; requests pass; markers and settings compact."""
    topics = {topic.name: topic for topic in system_topics(coordinators=3, partitions=5)}
    assert {
        name: (t.partition_count, t.configs["cleanup.policy"]) for name, t in topics.items()
    } == {
        "stilltide.txn-log": (3, "delete"),
        "stilltide.txn-requests": (3, "delete"),
        "stilltide.operator-requests": (3, "delete"),
        "stilltide.operator-ack-requests": (5, "delete"),
        "stilltide.txn-responses": (5, "delete"),
        "stilltide.txn-markers": (5, "compact,delete"),
        "stilltide.txn-snapshots": (5, "compact"),
        "stilltide.aborted-index": (5, "compact"),
        "stilltide.pending-ack-log": (5, "delete"),
        "stilltide.ack-requests": (5, "delete"),
        "stilltide.snapshot-requests": (5, "delete"),
        "stilltide.group-requests": (5, "delete"),
        "stilltide.replication-markers": (5, "compact"),
        "stilltide.replication-positions": (5, "compact"),
        "stilltide.settings": (1, "compact"),
    }
    assert topics["stilltide.txn-log"].configs["retention.ms"] == "-1"
    assert topics["stilltide.txn-markers"].configs["retention.ms"] == "-1"
    assert topics["stilltide.txn-log"].configs["max.message.bytes"] == str(ENTRY_BYTES_MAX)


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("orders", True),
        ("a.b_c-D9", True),
        ("...", True),
        ("x" * 249, True),
        ("x" * 250, False),
        ("", False),
        (".", False),
        ("..", False),
        ("a b", False),
        ("orders\n", False),
        ("ördér", False),
    ],
)
def test_names_that_kafka_allows(name: str, *, legal: bool):
    """Letters, digits, dot, underscore and dash of ASCII, 249 at most, not one or two dots."""
    assert is_topic_name(name) == legal


def test_an_error_says_where_why_and_what_next():
    """Every error joins place, primary, detail and hint; the record's place comes later."""
    error = DecodeError("not a marker", detail="wire type 7", hint="upgrade")
    assert str(error) == "not a marker\n  detail: wire type 7\n  hint: upgrade"
    assert error.at("orders", 2, 14) is error
    assert (error.topic, error.partition, error.offset) == ("orders", 2, 14)
    assert str(error).startswith("orders/2@14: not a marker\n")
    assert StilltideError("gone", topic="orders", partition=2).place == "orders/2"
    assert str(StilltideError("gone")) == "gone"
