"""Copying between clusters and replicated subscriptions: pure machines (H, I).

Who drives what:
- `link.Link`: one for each (source, target, partition of the target's replication-positions), with
  one transactional id; it is fed the data partitions that are placed there, and the source's
  markers for them.
- `snapshots.SnapshotBuilder` and `controller.ReplicationController`: one each for a data partition
  on every cluster, by whoever owns its partition of replication-markers; both are fed the markers
  of their cluster from the start of that partition on, the controller also replication-positions.

Markers and positions are read at read_committed: a marker takes effect together with the records
and the bucket of its transaction.
"""
