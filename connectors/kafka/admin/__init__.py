"""Topics, groups and transactions of a cluster, seen by an administrator."""
