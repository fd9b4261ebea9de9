"""A database with unique keys, and its connections."""
