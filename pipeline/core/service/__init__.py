"""A client's side of the conversation with the owner of a log: pure machines (C1b)."""
