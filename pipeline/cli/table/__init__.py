"""`stilltide table`."""
