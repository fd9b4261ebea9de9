"""Which transactions aborted on a data partition, kept in snapshots of bounded parts (E)."""
