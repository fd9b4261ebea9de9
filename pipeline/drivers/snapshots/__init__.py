"""Writes, lists, verifies and reads snapshots of aborted transactions (E)."""
