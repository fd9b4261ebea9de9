"""Settings of a process: their values, their sources, and clusters by name."""
