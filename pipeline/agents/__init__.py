"""The worker. Only this package imports Faust."""
