"""Which coordinated records a reader may see, and when (D)."""
