"""What metadata of a commit must be, the same for every connector.

*Source*: connectors.base, `GroupReader.commit`; kafka.md 2.
"""

from collections.abc import Mapping

from connectors.base import COMMIT_METADATA_CHARS_MAX
from connectors.errors import FatalError
from schemas.values import TopicPartition


def check_metadata(metadata: Mapping[TopicPartition, str]) -> None:
    """Passes what a broker with default settings takes.

    Raises:
        FatalError: it is too long, or not ASCII, whose bytes brokers and clients count differently.
    """
    for data, text in metadata.items():
        if len(text) > COMMIT_METADATA_CHARS_MAX or not text.isascii():
            raise FatalError(
                f"commit metadata of {len(text)} characters",
                hint=f"ASCII of at most {COMMIT_METADATA_CHARS_MAX} characters",
                topic=data.topic,
                partition=data.partition,
            )
