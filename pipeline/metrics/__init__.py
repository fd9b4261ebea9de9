"""Prometheus families of a worker, one module for each noun."""
