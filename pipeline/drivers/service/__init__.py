"""The common parts of services with a log: requests, owners, answers, bases (B, C1, C8)."""
