"""Runs the stores of pending acknowledgements, and a member's side of them (G)."""
