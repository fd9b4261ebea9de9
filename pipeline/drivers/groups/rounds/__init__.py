"""Questions and moves that many partitions share, in rounds of requests to the brokers."""
