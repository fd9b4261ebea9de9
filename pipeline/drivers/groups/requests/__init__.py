"""Requests of operators to the controllers of replicated groups (I14): both sides."""
