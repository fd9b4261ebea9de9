"""Keys and partitions."""

import pytest

from stilltide.pipeline.client.partitioner import partition_for


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
