"""Shared by the commands: printing, connections to clusters, a process's web site."""
