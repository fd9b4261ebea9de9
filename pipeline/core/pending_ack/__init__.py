"""Acknowledgements in transactions, as a replicated state machine over pending-ack-log (G)."""
