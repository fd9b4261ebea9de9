"""Ports: the interfaces to a log system, and the promises that drivers rely on."""
