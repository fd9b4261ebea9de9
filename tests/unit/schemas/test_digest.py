import hashlib

import pytest

from stilltide.schemas.digest import content_digest, record_digest


def test_a_record_digest_is_the_first_60_bits_of_its_hash():
    """The number is defined by the bytes `1:kv`, so any other program can compute it."""
    expected = int.from_bytes(hashlib.sha256(b"1:kv").digest()[:8]) >> 4
    assert record_digest(b"k", b"v") == expected
    assert 0 <= expected < 1 << 60


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((None, b"v"), (b"", b"v")),
        ((b"a", b"bc"), (b"ab", b"c")),
        ((b"1:a", b""), (b"1", b":a")),
        ((b"k", b"v"), (b"v", b"k")),
    ],
)
def test_key_and_value_are_not_confused(one: tuple[bytes, bytes], other: tuple[bytes, bytes]):
    """Bytes that move between key and value, and a null key, change the digest."""
    assert record_digest(*one) != record_digest(*other)


def test_a_null_value_counts_as_an_empty_one():
    """The digest does not tell a tombstone from an empty value; this is part of its definition."""
    assert record_digest(b"k", None) == record_digest(b"k", b"")


def test_content_digest_ignores_order_and_counts_repeats():
    """The order of records does not matter; one more copy of a record does."""
    records = [(b"a", b"1"), (None, b"2"), (b"c", None)]
    assert content_digest(records) == content_digest(records[::-1])
    assert content_digest([*records, records[0]]) == content_digest(records) + record_digest(
        b"a", b"1"
    )
    assert content_digest([]) == 0
