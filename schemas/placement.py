"""Which partition of a system topic serves a data partition.

*Source*: docs/glossary.md, data partition: a stable hash maps one to one partition of every
system topic, so a reader of one data partition reads one partition of each system topic.
"""

import zlib
from functools import lru_cache

from stilltide.schemas.values import TopicPartition


@lru_cache(maxsize=4096)  # asked for each marker
def system_partition(data: TopicPartition, partition_count: int) -> int:
    """CRC-32 of `topic:partition` in UTF-8, modulo the system topic's partition count."""
    return zlib.crc32(f"{data.topic}:{data.partition}".encode()) % partition_count
