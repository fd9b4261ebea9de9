"""Which copies librdkafka would alter, and which writers have to write them in another way.

*Source*: docs/protocols H11; docs/internals/kafka-clients.md, Producers.
"""

from itertools import chain
from operator import itemgetter

from stilltide.connectors.ports.copying import Copies
from stilltide.schemas.headers import is_writable

_NAME = itemgetter(0)


class ExactIds:
    """The transactional ids whose next writer is `ExactCopyWriter`, for one cluster.

    Attributes:
        ids: the ids.
        small: whether a topic has refused a batch of several records.
    """

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.small = False


def is_altered(copies: Copies) -> bool:
    """Whether librdkafka would write one of the copies with another time or header name."""
    if 0 in copies.timestamps_ms:
        return True
    names = set(map(_NAME, chain.from_iterable(copies.headers)))
    return not all(map(is_writable, names))
