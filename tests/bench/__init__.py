"""Measurements: `make bench`, or `python -m tests.bench [case ...]`."""
