"""Runs links, which copy topics from one cluster to another exactly once (H)."""
