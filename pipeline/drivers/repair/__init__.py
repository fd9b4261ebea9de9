"""Finds and repairs damaged records of system topics (B10)."""
