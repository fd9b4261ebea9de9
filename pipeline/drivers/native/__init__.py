"""Indexes and shows Kafka's own transactions (F)."""
