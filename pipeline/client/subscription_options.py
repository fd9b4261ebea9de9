"""Limits and time-outs of a `Subscription`, each with its default and its bound."""

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Literal, TypedDict, Unpack

from stilltide.connectors.ports.connector import METADATA_MAX_AGE_S
from stilltide.pipeline.client.bounds import require_at_least, require_positive
from stilltide.pipeline.client.serializers import Serializers, check_serializers
from stilltide.pipeline.client.usage import check_keywords, require
from stilltide.pipeline.core.pending_ack.redeliveries import RedeliveryPolicy
from stilltide.pipeline.drivers.subscription.options import OutOfRange
from stilltide.pipeline.errors import ConfigError


class OnUndecodable(StrEnum):
    """What becomes of a record that a deserializer refuses."""

    RAISE = "raise"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


class SubscriptionKeywords(TypedDict, total=False):
    """Keyword arguments of `Subscription` that set a field of `SubscriptionLimits`."""

    buffer_records_max: int
    undecided_records_max: int
    unavailable_timeout_s: float
    undecided_timeout_s: float
    assignment_timeout_s: float
    unacknowledged_records_max: int
    redelivery_delay_s: float
    redelivery_factor: float
    redelivery_delay_s_max: float
    deliveries_max: float
    metadata_max_age_s: float
    out_of_range: Literal["raise", "earliest", "latest"]
    value_deserializer: Serializers | None
    key_deserializer: Serializers | None
    on_undecodable: Literal["raise", "skip", "dead_letter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionLimits:
    """Limits and time-outs of a `Subscription`, all numbers > 0.

    Attributes:
        buffer_records_max: visible records in memory at which fetching pauses, >= 1. Records that
            were held behind an undecided record and become visible together may exceed the limit.
        undecided_records_max: records of a partition held behind an undecided record at which
            fetching of the partition pauses, >= 1.
        unavailable_timeout_s: how long the cluster may be away, or a pending-ack store unanswered,
            before the subscription fails; without a limit by default, so that reading goes on when
            the cluster is back. On entry the limit is a minute at most, and
            seconds if nobody listens at the address.
        undecided_timeout_s: how long `read_to` waits at one undecided record. The time begins when
            the markers written before the wait were read.
        assignment_timeout_s: how long `read_to` waits for the group to assign a partition.
        unacknowledged_records_max: messages of all partitions that are returned and not
            acknowledged, at which delivery waits, >= 1.
        redelivery_delay_s: time from the first failure of a message to its next delivery: from a
            negative acknowledgement, or from the end of an aborted transaction (G2).
        redelivery_factor: factor from one such time to the next, >= 1.
        redelivery_delay_s_max: longest such time; at least `redelivery_delay_s` in any case.
        deliveries_max: deliveries of a message to one member after which the message moves to its
            dead-letter topic, >= 1; without a limit by default.
        metadata_max_age_s: longest time until added partitions are read, until new topics that fit
            a pattern are, and until a topic that was deleted and created again is noticed. Kafka's
            own default.
        out_of_range: what to do where the log does not hold the group's position, because retention
            has deleted records that the group has not read, or a tool has committed an offset
            beyond the end: "raise" `OffsetOutOfRangeError`, which names the command that moves the
            group, or go on at the "earliest" record that is left, or at the "latest" end.
        value_deserializer: makes the values of messages of the bytes: a deserializer of
            `confluent_kafka`, also an asynchronous one, or any callable that takes bytes; or a
            mapping of topics to these. None: values are bytes.
        key_deserializer: the same for keys.
        on_undecodable: what becomes of a record that a deserializer refuses: "raise"
            `UndecodableError`, which returns the record; "skip" it, logged and counted; or move it
            at once to its "dead_letter" topic, which needs `acknowledgements` and `deliveries_max`.
            If what a deserializer asks does not answer, `SerializerError` is raised in any case.

    Raises:
        ArgumentError: a deserializer is none.
        ConfigError: a value is out of its bounds.
    """

    buffer_records_max: int = 10_000
    undecided_records_max: int = 10_000
    unavailable_timeout_s: float = math.inf
    undecided_timeout_s: float = 30.0
    assignment_timeout_s: float = 30.0
    unacknowledged_records_max: int = 10_000
    redelivery_delay_s: float = 1.0
    redelivery_factor: float = 2.0
    redelivery_delay_s_max: float = 60.0
    deliveries_max: float = math.inf
    metadata_max_age_s: float = METADATA_MAX_AGE_S
    out_of_range: Literal["raise", "earliest", "latest"] = "raise"
    value_deserializer: Serializers | None = None
    key_deserializer: Serializers | None = None
    on_undecodable: Literal["raise", "skip", "dead_letter"] = "raise"

    def __post_init__(self) -> None:
        for name in ("value_deserializer", "key_deserializer"):
            check_serializers(name, getattr(self, name), deserializer=True)
        choices = {"out_of_range": OutOfRange, "on_undecodable": OnUndecodable}
        others = {"value_deserializer", "key_deserializer", *choices}
        numbers = [field.name for field in fields(self) if field.name not in others]
        require_positive(**{name: getattr(self, name) for name in numbers})
        for name, choice in choices.items():
            if (given := getattr(self, name)) not in [*choice]:
                known = ", ".join(f'"{value}"' for value in choice)
                raise ConfigError(f"`{name}` is {given!r}", hint=f"give one of {known}")
        self._check_on_undecodable()
        require_at_least(1, redelivery_factor=self.redelivery_factor)
        require_at_least(1, deliveries_max=self.deliveries_max)

    def _check_on_undecodable(self) -> None:
        if self.on_undecodable == OnUndecodable.RAISE:
            return
        if not self.decodes:
            raise ConfigError(
                "`on_undecodable` has no effect without a deserializer",
                hint="give `value_deserializer` or `key_deserializer`, too",
            )
        if self.on_undecodable == OnUndecodable.DEAD_LETTER and self.deliveries_max == math.inf:
            raise ConfigError(
                '`on_undecodable` is "dead_letter", and the group has no dead letters',
                hint="give `acknowledgements=True` and `deliveries_max`, too",
            )

    @property
    def decodes(self) -> bool:
        """Whether keys or values are what deserializers make."""
        return self.key_deserializer is not None or self.value_deserializer is not None

    @property
    def redelivery(self) -> RedeliveryPolicy:
        """When messages that fail are delivered again, and how often."""
        return RedeliveryPolicy(
            first_ms=self.redelivery_delay_s * 1000,
            factor=self.redelivery_factor,
            max_ms=max(self.redelivery_delay_s, self.redelivery_delay_s_max) * 1000,
            deliveries_max=self.deliveries_max,
        )


def limits_of(**options: Unpack[SubscriptionKeywords]) -> SubscriptionLimits:
    """The limits that an application gave, with defaults for the rest.

    Raises:
        ArgumentError: a name is not a limit; the text is that of Python's own error.
        ConfigError: a value is not above 0.
    """
    check_keywords("Subscription", options, SubscriptionKeywords.__annotations__)
    return SubscriptionLimits(**options)


def check_begin(since_ms: int | None, *, from_start: bool) -> None:
    """Raises `ConfigError` unless a new group has one place to begin at."""
    if since_ms is not None:
        require(int, since_ms=since_ms)
    if since_ms is not None and (since_ms < 0 or not from_start):
        raise ConfigError(
            f"`since_ms` is {since_ms}, with `from_start={from_start}`",
            hint="give a time at or after 1970, and leave `from_start` out",
        )
