"""Digest of a partition's records that does not depend on the order of reading.

*Source*: docs/protocols C6 (no record of a committed transaction is missing); the audit compares
the digests of the records that a producer wrote and that a consumer read.

*Invariants*: the digest of a set of records is the exact integer sum of the records' digests, so
digests of parts add up to the digest of the whole, and a repeated record counts twice. Spark
computes the same number (`connectors.spark.read_committed`).

The digest detects accidental differences, not forgeries: a sum of hashes can be forged.
"""

import hashlib
from collections.abc import Iterable

DIGEST_BITS = 60
"""Bits kept of each SHA-256: 15 hexadecimal digits, which fit a signed 64-bit integer."""

_HEX_DIGITS = DIGEST_BITS // 4


def record_digest(key: bytes | None, value: bytes | None) -> int:
    """The first 60 bits of SHA-256 over `<length of the key, or -1>:<key><value>`.

    The length is ASCII decimal and -1 for a null key, so key and value cannot be confused; a null
    value counts as an empty one. Offset, timestamp and headers do not count.
    """
    length = -1 if key is None else len(key)
    content = b"%d:%b%b" % (length, key or b"", value or b"")
    return int(hashlib.sha256(content).hexdigest()[:_HEX_DIGITS], 16)


def content_digest(records: Iterable[tuple[bytes | None, bytes | None]]) -> int:
    """The sum of `record_digest` over (key, value) pairs; 0 for none."""
    return sum(record_digest(key, value) for key, value in records)
