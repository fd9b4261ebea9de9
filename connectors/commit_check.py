"""What metadata of a commit must be, the same for every connector.

*Source*: connectors.ports, `GroupReader.commit`; kafka.md 2.
"""

from collections.abc import Mapping

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.readers import COMMIT_METADATA_CHARS_MAX
from stilltide.schemas.values import TopicPartition


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
