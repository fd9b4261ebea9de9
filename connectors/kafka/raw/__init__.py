"""Kafka's wire protocol through kafka-python: raw batches and single requests."""
