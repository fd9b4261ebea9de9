"""Codecs of txn-requests, txn-responses, txn-log and txn-markers."""
