"""Batch jobs: with stilltide.connectors.spark the only importers of PySpark."""
