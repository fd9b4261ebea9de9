"""Codecs of txn-snapshots and of requests for snapshots."""
