"""Runs transaction coordinators, and asks them (C)."""
