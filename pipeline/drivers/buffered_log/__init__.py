"""Logs that a buffered writer fills and one owner reads back (A, B)."""
