"""Copies data partitions from one cluster to another, exactly once: pure machines (H)."""
