"""What a reader of coordinated records may see, and when (D)."""
