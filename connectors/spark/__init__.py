"""Spark session, Kafka source and read-committed filters."""
