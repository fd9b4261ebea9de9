"""Replicated consumer groups and position snapshots: pure machines (I)."""
