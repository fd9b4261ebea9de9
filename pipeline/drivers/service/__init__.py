"""What every service with a log of its own shares: requests, owners, answers, bases (B, C1, C8)."""
