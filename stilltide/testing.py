"""Unit tests of applications without Kafka: a cluster with a worker inside of the test's process.

`MemoryCluster` is for programs that await, `SyncMemoryCluster` for programs that use
`stilltide.sync`. Both run the coordinators of a real worker on a broker in memory.
"""

from stilltide.pipeline.testing.cluster import MemoryCluster, SyncMemoryCluster

__all__ = ["MemoryCluster", "SyncMemoryCluster"]
