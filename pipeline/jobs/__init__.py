"""Batch jobs: with connectors.spark the only importers of PySpark."""
