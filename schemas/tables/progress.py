"""The progress of a table that is made from topics: JSON text, stored with each batch.

*Source*: docs/protocols K2, K4.

Refuses: text of a later version, and text that is no progress.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.values import Offset, TopicPartition

_VERSION = 1


class TableProgress(NamedTuple):
    """Everything that a table holds: the batches up to `number`.

    Attributes:
        number: number of the last batch, from 1 on; 0 for a table without any batch.
        topic_ids: Kafka's 16-byte id of each topic; empty without any batch.
        positions: the next offset of each partition that was read. A partition that is missing
            begins at its log start.
    """

    number: int
    topic_ids: Mapping[str, bytes]
    positions: Mapping[TopicPartition, Offset]

    def to_text(self) -> str:
        """The text that is stored; equal progress has equal text."""
        positions: dict[str, dict[str, int]] = {}
        for data, position in sorted(self.positions.items()):
            positions.setdefault(data.topic, {})[str(data.partition)] = position
        body = {
            "version": _VERSION,
            "batch": self.number,
            "topic_ids": {topic: known.hex() for topic, known in sorted(self.topic_ids.items())},
            "positions": positions,
        }
        return json.dumps(body)

    @classmethod
    def from_text(cls, text: str) -> "TableProgress":
        """The progress that was stored.

        Raises:
            DecodeError: the text is damaged, of a later version, or something else.
        """
        try:
            return _progress(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DecodeError(
                "the text is not the progress of a table", detail=f"{type(error).__name__}: {error}"
            ) from error


NOTHING = TableProgress(0, {}, {})
"""The progress of a new table."""


def _progress(body: Mapping[str, Any]) -> TableProgress:
    if body["version"] != _VERSION:
        raise ValueError(f"version {body['version']}")
    positions = {
        TopicPartition(topic, int(number)): Offset(int(offset))
        for topic, offsets in body["positions"].items()
        for number, offset in offsets.items()
    }
    topic_ids = {topic: bytes.fromhex(known) for topic, known in body["topic_ids"].items()}
    return TableProgress(int(body["batch"]), topic_ids, positions)
