"""Chooses the partition of a record that is sent without one.

*Source*: Kafka's default partitioner: murmur2 of the key, so that every producer of a topic agrees.

murmur2 is written out here, because the libraries that have it are whole Kafka clients: importing
one takes longer than everything else that an application loads to write transactions.
"""

import struct

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORDS = struct.Struct("<I")


def partition_for(key: bytes | None, partition_count: int, turn: int) -> int:
    """The key's partition; without a key, the partition chosen by the transaction's `turn`."""
    if key is None:
        return turn % partition_count
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def murmur2(key: bytes) -> int:
    """MurmurHash2 of a key, unsigned; `org.apache.kafka.common.utils.Utils.murmur2` is signed."""
    whole = len(key) & ~3
    hashed = _SEED ^ len(key)
    for (word,) in _WORDS.iter_unpack(key[:whole]):
        mixed = word * _FACTOR & _MASK
        mixed = (mixed ^ mixed >> 24) * _FACTOR & _MASK
        hashed = (hashed * _FACTOR & _MASK) ^ mixed
    if rest := key[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * _FACTOR & _MASK
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _MASK
    return hashed ^ hashed >> 15
