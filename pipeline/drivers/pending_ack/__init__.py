"""Runs pending-ack stores, and the members that acknowledge messages to them (G)."""
