"""Runs the controllers of replicated groups, and reports on groups (I)."""
