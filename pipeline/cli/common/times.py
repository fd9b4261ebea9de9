"""How commands show times."""

from datetime import UTC, datetime


def utc(at_ms: int) -> str:
    """A time, milliseconds since 1970, as ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
