"""Tables that are made from topics: which offsets the next batch holds, and what may be stored."""
