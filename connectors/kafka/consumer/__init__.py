"""Readers on confluent-kafka's consumer."""
