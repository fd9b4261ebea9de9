"""Runs of many worlds: how far they are, what fails, and whether a seed is one run."""
