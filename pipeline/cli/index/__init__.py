"""`stilltide index`: the index of aborted native transactions."""
