"""Whether the values of a request about acknowledgements can be true, before it is logged.

*Source*: docs/protocols C10, C16; Kafka's bounds of names, partitions and offsets.
"""

from collections.abc import Iterable
from functools import lru_cache

from stilltide.pipeline.core.pending_ack.subscription import HELD_MAX
from stilltide.schemas.pending_ack.acknowledgements import (
    Acknowledge,
    AckRequest,
    Attach,
    CursorMoved,
)
from stilltide.schemas.service.client_ids import CLIENT_NAME_CHARS_MAX, wrong_client_id
from stilltide.schemas.topics import is_system_topic, is_topic_name
from stilltide.schemas.values import (
    OFFSET_MAX,
    PARTITION_MAX,
    TOPIC_ID_BYTES,
    Ranges,
    SubscriptionId,
)

NAME_CHARS_MAX = 1000
"""Longest name of a consumer group, and longest id of a member."""


def wrong_values(request: AckRequest) -> str:
    """Why the values of a client's request cannot be true; "" if they can."""
    wrong = "" if request.subscription is None else _wrong_subscription(request.subscription)
    body = request.body
    if isinstance(body, Attach):
        if len(body.group_member) > NAME_CHARS_MAX or len(body.client_name) > CLIENT_NAME_CHARS_MAX:
            return f"a name of more than {CLIENT_NAME_CHARS_MAX} characters"
        if len(body.topic_id) not in {0, TOPIC_ID_BYTES}:
            return f"a topic's id of {len(body.topic_id)} bytes"
        return wrong or _wrong_cursor(body.cursor, body.acknowledged)
    if isinstance(body, CursorMoved):
        return wrong or _wrong_cursor(body.cursor, body.acknowledged)
    if isinstance(body, Acknowledge):
        return wrong or _wrong_acknowledgement(body)
    return wrong


@lru_cache(maxsize=4096)
def _wrong_subscription(subscription: SubscriptionId) -> str:
    """Cached: few group partitions come again and again."""
    (topic, partition), group = subscription
    if partition > PARTITION_MAX or is_system_topic(topic) or not is_topic_name(topic):
        return f"no application reads {topic[:50]!r}/{partition}"
    if not 1 <= len(group) <= NAME_CHARS_MAX:
        return f"a group's name of {len(group)} characters"
    return ""


def _wrong_cursor(cursor: int, acknowledged: Ranges) -> str:
    if len(acknowledged) > HELD_MAX:
        return f"{len(acknowledged)} ranges of offsets; the most is {HELD_MAX}"
    return _wrong_offsets((cursor, *(end for _, end in acknowledged[-1:])))


def _wrong_acknowledgement(body: Acknowledge) -> str:
    if wrong_client_id(body.txn_client_id):
        return "an acknowledgement that does not name the client of the transaction"
    if len(body.offsets) > HELD_MAX:
        return f"{len(body.offsets)} offsets; the most is {HELD_MAX}"
    beyond = max(*body.txn, body.cumulative_offset or 0)
    return _wrong_offsets((beyond, max(body.offsets, default=0)))


def _wrong_offsets(offsets: Iterable[int]) -> str:
    beyond = [offset for offset in offsets if offset > OFFSET_MAX]
    return f"offset {beyond[0]} is beyond 2^63 - 1" if beyond else ""
