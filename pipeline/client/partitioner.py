"""Which partition a record without an explicit one goes to.

*Source*: Kafka's default partitioner: murmur2 of the key, so that every producer of a topic agrees.

The libraries that have murmur2 are whole Kafka clients; importing one of them takes longer than
everything else that an application loads to write transactions.
"""

import struct

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORDS = struct.Struct("<I")


def partition_for(key: bytes | None, partition_count: int, turn: int) -> int:
    """The key's partition; without key, one chosen by `turn` (sticky for a transaction)."""
    if key is None:
        return turn % partition_count
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def murmur2(key: bytes) -> int:
    """MurmurHash2 of a key, as `org.apache.kafka.common.utils.Utils.murmur2`; 32 bits, unsigned."""
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
