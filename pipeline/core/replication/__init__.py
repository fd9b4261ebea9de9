"""Copying between clusters and replicated subscriptions: pure machines (H, I)."""
