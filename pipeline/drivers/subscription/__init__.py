"""Runs a subscription of an application (D, I11)."""
