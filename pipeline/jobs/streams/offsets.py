"""The offsets of a streaming query, as its checkpoint keeps them.

*Source*: docs/protocols K4, K6.
*Invariants*: an offset names the ranges of the batch that ends there, so that a batch that is
repeated after a crash has the same ranges.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stilltide.pipeline.errors import TableError
from stilltide.pipeline.jobs.tables.files import TableFiles
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.tables.progress import (
    NOTHING,
    TableProgress,
    decode_progress,
    encode_progress,
)
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

_OFFSETS = "offsets"


class StreamOffset(NamedTuple):
    """Where a batch of a query ends.

    Attributes:
        progress: positions and topic ids after the batch.
        reads: the ranges of the batch.
    """

    progress: TableProgress
    reads: Sequence[OffsetRange] = ()

    def to_dict(self) -> dict[str, str]:
        """What Spark stores; values are text, as Spark's interface allows no lists."""
        reads = [[*read.data, read.start, read.end] for read in self.reads]
        return {"progress": encode_progress(self.progress), "reads": json.dumps(reads)}


BEGIN = StreamOffset(NOTHING)
"""The offset of a new query."""


def offset_of(body: Mapping[str, str]) -> StreamOffset:
    """Reads what `to_dict` returned.

    Raises:
        TableError: it is the offset of something else, or of a later version.
    """
    try:
        reads = [
            OffsetRange(TopicPartition(topic, number), Offset(start), EndOffset(end))
            for topic, number, start, end in json.loads(body["reads"])
        ]
        return StreamOffset(decode_progress(body["progress"]), reads)
    except (DecodeError, ValueError, KeyError, TypeError) as error:
        raise TableError(
            "the checkpoint is of another source",
            detail=str(error),
            hint="use the checkpoint of this query, or a new one",
        ) from error


def last_offset(checkpoint: TableFiles) -> StreamOffset:
    """The offset of the last batch that a query has begun; `BEGIN` for a new checkpoint.

    Raises:
        TableError: the checkpoint is of a query with another source, or damaged.
    """
    numbers = [int(name) for name in checkpoint.names(_OFFSETS) if name.isdigit()]
    if not numbers:
        return BEGIN
    name = f"{_OFFSETS}/{max(numbers)}"
    try:
        return offset_of(json.loads(checkpoint.read(name).splitlines()[-1]))
    except (OSError, ValueError, IndexError) as error:
        raise TableError(
            f"the checkpoint {checkpoint.uri}/{name} cannot be read",
            detail=str(error),
            hint="restore it from a copy, or use a new checkpoint",
        ) from error
