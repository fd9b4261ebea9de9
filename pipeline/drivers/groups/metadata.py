"""The generation in the metadata of a committed offset (I11).

*Source*: docs/protocols I7, I11, G. The generation is the field `g`, next to the acknowledgements.

*Invariants*: acknowledgements are kept as far as they remain true; metadata without room for the
generation is written without it, and a member that reads such metadata skips nothing.

Refuses: metadata with Stilltide's tag that is damaged, or of a later version.
"""

from stilltide.connectors.ports.readers import COMMIT_METADATA_CHARS_MAX, Committed
from stilltide.pipeline.core.pending_ack.cursor import Cursor, decode, encode
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.values import EndOffset, Offset, Range, Ranges

_FIELD = "g="
_TAG = "st1"


def generation_of(committed: Committed) -> int | None:
    """The generation that a commit names; None: no generation.

    Raises:
        DecodeError: the metadata has Stilltide's tag, and is damaged or of a later version.
    """
    cursor = decode(committed.offset, committed.metadata)
    for field in cursor.fields if cursor else ():
        if field.startswith(_FIELD) and field[2:].isdecimal():
            return int(field[2:])
    return None


def tagged(metadata: str, generation: int) -> str:
    """The metadata of a commit with this generation, and with all other fields unchanged."""
    fields = metadata.split(";") if metadata else [_TAG]
    if fields[0] != _TAG:
        return metadata
    kept = [field for field in fields if not field.startswith(_FIELD)]
    found = ";".join([*kept, f"{_FIELD}{generation}"])
    return found if len(found) <= COMMIT_METADATA_CHARS_MAX else ";".join(kept)


def reset(committed: Committed | None, offset: Offset) -> Committed:
    """The commit that an operator's reset through Kafka makes.

    A reset forward keeps what is acknowledged above the offset. A reset back, or to where the group
    stands, keeps nothing, neither acknowledgements nor a generation: every record from the offset
    on is to be read again. What cannot be decoded is forgotten too, since no member could go on.
    """
    if committed is None or offset <= committed.offset:
        return Committed(offset, "")
    try:
        cursor = decode(committed.offset, committed.metadata)
    except DecodeError:
        return Committed(offset, "")
    kept = Cursor(offset, _above(cursor, offset), cursor.fields if cursor else ())
    return Committed(offset, encode(kept))


def moved(
    committed: Committed | None, offset: Offset, generation: int, *, adopts: bool = False
) -> Committed:
    """The commit that moves a group to `offset`, or behind what it has acknowledged there (G).

    Where the group adopts a generation and does not go forward, nothing acknowledged is kept, as in
    `reset` (I10).

    Raises:
        DecodeError: the metadata of the group's commit has Stilltide's tag, and is damaged or of a
            later version.
    """
    cursor = decode(committed.offset, committed.metadata) if committed else None
    cursor = cursor or Cursor(offset)
    if adopts and committed is not None and offset <= committed.offset:
        cursor = cursor._replace(acknowledged=())
    cursor = cursor.moved(offset)
    return Committed(cursor.offset, tagged(encode(cursor), generation))


def _above(cursor: Cursor | None, offset: Offset) -> Ranges:
    """What is acknowledged above an offset."""
    return tuple(
        Range(Offset(max(first, offset + 1)), EndOffset(end))
        for first, end in (cursor.acknowledged if cursor else ())
        if end > offset + 1
    )
