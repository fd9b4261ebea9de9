"""`stilltide snapshot`: snapshots of aborted transactions."""
