"""Which partition a record without an explicit one goes to.

*Source*: Kafka's default partitioner: murmur2 of the key, so that every producer of a topic agrees.
"""

from aiokafka.partitioner import murmur2  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]


def partition_for(key: bytes | None, partition_count: int, turn: int) -> int:
    """The key's partition; without key, one chosen by `turn` (sticky for a transaction)."""
    if key is None:
        return turn % partition_count
    hashed: int = murmur2(key)
    return (hashed & 0x7FFFFFFF) % partition_count
