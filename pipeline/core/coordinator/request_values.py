"""Whether the values of a request can be true of any cluster, before the request is logged.

*Source*: docs/protocols C10, C16; Kafka's bounds of names, partitions and offsets.

*Refuses*: nothing that depends on a setting or on the state; see `admission`.
"""

from collections.abc import Iterable
from functools import lru_cache

from stilltide.pipeline.core.coordinator.state import TRANSACTIONS_PER_OPEN_MAX
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    AddSubscriptions,
    Change,
    End,
    Open,
    Registered,
    Release,
    Request,
    Written,
)
from stilltide.schemas.service.client_ids import CLIENT_NAME_CHARS_MAX
from stilltide.schemas.topics import is_system_topic, is_topic_name
from stilltide.schemas.values import OFFSET_MAX, PARTITION_MAX, TOPIC_ID_BYTES, SubscriptionId

GROUP_CHARS_MAX = 1000
"""Longest name of a consumer group; Kafka itself allows 32 767 bytes."""


def wrong_values(request: Request, body: Change) -> str:
    """Why the values of a request cannot be true; "" if they can."""
    if request.number > OFFSET_MAX or request.acked_through >= request.number:
        return f"request {request.number} acknowledges answers up to {request.acked_through}"
    if isinstance(body, Open):
        return _wrong_open(body)
    if isinstance(body, Release):
        beyond = max(body.sequences, default=0)
        return _wrong_sequence(beyond)
    wrong = _wrong_sequence(body.sequence)
    if isinstance(body, AddPartitions):
        wrong = wrong or _wrong_registrations(body.partitions)
    elif isinstance(body, AddSubscriptions):
        wrong = wrong or _wrong_subscriptions(body.subscriptions)
    elif isinstance(body, End):
        wrong = wrong or _wrong_written(body.written)
        wrong = wrong or _wrong_subscriptions(body.acknowledged_in or ())
    return wrong


def _wrong_open(body: Open) -> str:
    if not 1 <= body.transaction_count <= TRANSACTIONS_PER_OPEN_MAX:
        return f"open of {body.transaction_count} transactions at once"
    if len(body.client_name) > CLIENT_NAME_CHARS_MAX:
        return f"a client's name of {len(body.client_name)} characters"
    return _wrong_registrations(body.partitions) or _wrong_subscriptions(body.subscriptions)


def _wrong_sequence(sequence: int) -> str:
    return "" if sequence <= OFFSET_MAX else f"sequence {sequence} is beyond 2^63 - 1"


def _wrong_registrations(registered: Iterable[Registered]) -> str:
    for (topic, partition), start_offset, topic_id in registered:
        wrong = _wrong_partition(topic, partition)
        if wrong:
            return wrong
        if start_offset > OFFSET_MAX:
            return f"start offset {start_offset} is beyond 2^63 - 1"
        if len(topic_id) != TOPIC_ID_BYTES:
            return f"a topic id of {len(topic_id)} bytes"
    return ""


def _wrong_written(written: Iterable[Written]) -> str:
    for (topic, partition), first_offset, end_offset, record_count in written:
        wrong = _wrong_partition(topic, partition)
        if wrong:
            return wrong
        if max(first_offset, end_offset, record_count) > OFFSET_MAX:
            return f"an offset or count of {topic}/{partition} is beyond 2^63 - 1"
    return ""


def _wrong_subscriptions(subscriptions: Iterable[SubscriptionId]) -> str:
    for (topic, partition), group in subscriptions:
        wrong = _wrong_partition(topic, partition)
        if wrong:
            return wrong
        if not 1 <= len(group) <= GROUP_CHARS_MAX:
            return f"a group's name of {len(group)} characters"
    return ""


def _wrong_partition(topic: str, partition: int) -> str:
    if partition > PARTITION_MAX:
        return f"partition {partition} is beyond 2^31 - 1"
    return _wrong_topic(topic)


@lru_cache(maxsize=4096)
def _wrong_topic(topic: str) -> str:
    """Cached: few topics come again and again."""
    if is_system_topic(topic):
        return f"topic {topic} belongs to Stilltide"
    return "" if is_topic_name(topic) else f"no topic can have the name {topic[:50]!r}"
