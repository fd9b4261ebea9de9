"""Streaming queries over the committed records of topics."""
