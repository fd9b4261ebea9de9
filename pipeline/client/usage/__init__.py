"""Finds mistakes of programs at the call, and keeps account of what is in use and how it ends."""
