"""The worker: the only importers of Faust."""
