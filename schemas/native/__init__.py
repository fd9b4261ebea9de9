"""Record batches and native transactions of Kafka; codec of aborted-index."""
