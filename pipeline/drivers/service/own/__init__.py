"""What workers use to own logs and answer for them (B, C1, C17)."""
