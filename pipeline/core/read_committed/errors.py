"""What markers may do wrong.

*Source*: protocols.md C4: a marker is written again after a crash, always with the same outcome.
"""

from schemas.errors import StilltideError


class MarkerConflictError(StilltideError):
    """Two markers of one transaction and partition say different things."""
