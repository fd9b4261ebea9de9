"""Version 1 of the wire formats: `.proto` sources and what `make protos` generates from them."""
