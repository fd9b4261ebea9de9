"""Asks databases and coordinators for the resolver of prepared transactions (L4, L5, L6)."""
