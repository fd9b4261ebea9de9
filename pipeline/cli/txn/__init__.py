"""`stilltide txn`."""
