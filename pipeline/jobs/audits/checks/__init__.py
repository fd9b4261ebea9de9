"""The checks of an audit, one module each, and what they share."""
