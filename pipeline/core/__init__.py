"""Pure machines of the protocols: no I/O, no clock, no randomness (ARCHITECTURE.md)."""
