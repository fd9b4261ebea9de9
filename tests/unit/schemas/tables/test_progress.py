"""The bytes of a table's progress: tables that were written by an earlier version stay readable."""

import pytest

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.tables.progress import TableProgress
from stilltide.schemas.values import Offset, TopicPartition

PROGRESS = TableProgress(
    7,
    {"orders": bytes(range(16))},
    {TopicPartition("orders", 10): Offset(5), TopicPartition("orders", 2): Offset(2**40)},
)
TEXT = (
    '{"version": 1, "batch": 7, "topic_ids": {"orders": "000102030405060708090a0b0c0d0e0f"}, '
    '"positions": {"orders": {"2": 1099511627776, "10": 5}}}'
)


def test_the_text_is_the_same_for_ever():
    """Written and read alike."""
    assert PROGRESS.to_text() == TEXT
    assert TableProgress.from_text(TEXT) == PROGRESS


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", TEXT.replace('"version": 1', '"version": 2'), TEXT.replace("0001", "xx")],
)
def test_other_text_is_refused(text: str):
    """Damaged text, and text of a later version, is never guessed."""
    with pytest.raises(DecodeError, match="not the progress of a table"):
        TableProgress.from_text(text)
