"""Direct lines between clients and the workers of owners, over TCP (J)."""
