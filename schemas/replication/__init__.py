"""Codecs of replication-markers and replication-positions; origins of copied records."""
