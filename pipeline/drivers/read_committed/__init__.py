"""Gathers what decides records: markers, snapshots, decided logs (D)."""
