"""Checks the metadata of a group's commit, for every connector alike.

*Source*: connectors.ports, `GroupReader.commit`; Kafka's `offset.metadata.max.bytes`.
"""

from collections.abc import Mapping

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.readers import COMMIT_METADATA_CHARS_MAX
from stilltide.schemas.values import TopicPartition


def check_metadata(metadata: Mapping[TopicPartition, str]) -> None:
    """Passes metadata that a broker with default settings takes.

    Raises:
        FatalError: metadata is too long, or not ASCII: of other text brokers count the bytes and
            clients the characters.
    """
    for data, text in metadata.items():
        if len(text) > COMMIT_METADATA_CHARS_MAX or not text.isascii() or "\0" in text:
            raise FatalError(
                f"commit metadata of {len(text)} characters",
                hint=f"ASCII without NUL of at most {COMMIT_METADATA_CHARS_MAX} characters",
                topic=data.topic,
                partition=data.partition,
            )
