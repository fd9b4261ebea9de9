"""Collects the state of all clusters: the loops behind `stilltide status` and the console."""
