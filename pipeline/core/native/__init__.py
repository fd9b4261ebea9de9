"""Aborted native transactions, found from batch headers alone (F)."""
