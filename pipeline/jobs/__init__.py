"""Batch jobs. Only this package and stilltide.connectors.spark import PySpark."""
