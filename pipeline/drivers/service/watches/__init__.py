"""Watches of what a worker writes (C17)."""
