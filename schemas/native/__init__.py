"""Batches and transactions of Kafka itself; codec of aborted-index."""
