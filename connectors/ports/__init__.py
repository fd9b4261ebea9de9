"""Ports: what the drivers ask of a log system, and what they may rely on."""
