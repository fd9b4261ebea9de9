"""A client's session with the owner of a log: pure machines (C1b)."""
