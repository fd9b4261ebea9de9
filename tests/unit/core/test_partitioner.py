"""Keys and partitions."""

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.partitioner import murmur2, partition_for


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_go_where_other_producers_send_them(key: bytes, hashed: int):
    """The vectors of Kafka's own test of murmur2: a key's partition is that of any producer."""
    for count in (1, 3, 7, 1000):
        assert partition_for(key, count, turn=5) == (hashed & 0x7FFFFFFF) % count


@given(st.binary(max_size=64))
def test_the_hash_is_that_of_another_client(key: bytes):
    """Any key has the hash that aiokafka gives it."""
    assert murmur2(key) == aiokafka_murmur2(key)
