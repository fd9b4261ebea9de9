"""Packing of records into log entries (A), and ownership of a log by fencing (B)."""
