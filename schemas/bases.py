"""A base in a log: the whole state of its owner, in pieces that fit into entries.

*Source*: protocols.md C8.
"""

from typing import NamedTuple

from stilltide.schemas.values import EndOffset

PIECE_BYTES_MAX = 512 * 1024
"""A piece shares its entry with other records, and an entry is bounded (A3)."""


class Base(NamedTuple):
    """Piece `piece_index` of `piece_count` of a state as of an offset.

    Everything effective below `as_of` is in it. The `state` bytes of all pieces are to be joined;
    they stay bytes because only a recovery needs to know what they say.
    """

    as_of: EndOffset
    piece_index: int
    piece_count: int
    state: bytes


def pieces(as_of: EndOffset, state: bytes) -> list[Base]:
    """The pieces of a base in the order in which they are to be written; at least one."""
    starts = range(0, len(state) or 1, PIECE_BYTES_MAX)
    return [
        Base(as_of, index, len(starts), state[start : start + PIECE_BYTES_MAX])
        for index, start in enumerate(starts)
    ]
