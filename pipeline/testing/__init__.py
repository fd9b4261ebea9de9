"""A cluster with a worker inside of a process, for unit tests of applications."""
