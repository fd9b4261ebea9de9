"""Reads markers and snapshots, which decide records, and tails decided logs (D)."""
