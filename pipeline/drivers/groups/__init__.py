"""Runs the controllers of replicated consumer groups, and reports on groups (I)."""
