"""A deterministic broker: a verified fake that passes the contract suite of Kafka."""
