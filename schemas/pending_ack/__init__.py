"""Codecs of ack-requests and pending-ack-log."""
