"""Parts that drivers of several nouns use."""
