"""Kafka's own transactions, told from batch headers alone (F)."""
