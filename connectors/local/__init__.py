"""The embedded default: real Kafka brokers as child processes."""
