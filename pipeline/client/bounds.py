"""The arguments of the client library, checked before anything is opened or sent.

*Source*: docs/protocols C2. A client does not know the longest time-out that a cluster allows; the
coordinator refuses a longer one. This module refuses what the request's field cannot hold.
"""

import math
from dataclasses import dataclass
from typing import TypedDict, Unpack

from stilltide.connectors.ports.connector import METADATA_MAX_AGE_S
from stilltide.pipeline.client.serializers import Serializers, check_serializers
from stilltide.pipeline.client.usage import check_keywords, require
from stilltide.pipeline.core.coordinator.pool import POOLED_MS_MAX
from stilltide.pipeline.errors import ConfigError

TIMEOUT_MS_MAX = 2**64 - 1 - POOLED_MS_MAX
"""The longest time-out that a request can hold: its field has 64 bits, and the time-out of a
transaction opened ahead is `POOLED_MS_MAX` longer (C9)."""

LINGER_MS_MAX = 900_000
"""The Kafka client's own limit."""


def require_positive(**options: float) -> None:
    """Refuses options that are not above 0.

    Raises:
        ArgumentError: an option is no number.
        ConfigError: an option is not above 0; the error names the first such option.
    """
    require((int, float), **options)
    for name, value in options.items():
        if not value > 0:  # NaN is refused as well
            raise ConfigError(f"`{name}` is {value}; it must be above 0")


def require_at_least(least: float, **options: float) -> None:
    """Refuses options below `least`.

    Raises:
        ArgumentError: an option is no number.
        ConfigError: an option is below `least`; the error names the first such option.
    """
    require((int, float), **options)
    for name, value in options.items():
        if not value >= least:  # NaN is refused as well
            raise ConfigError(f"`{name}` is {value}; it must be at least {least:g}")


def require_at_most(most: float, **options: float) -> None:
    """Refuses options above `most`.

    Raises:
        ConfigError: an option is above `most`; the error names the first such option.
    """
    for name, value in options.items():
        if not value <= most:  # NaN is refused as well
            raise ConfigError(f"`{name}` is {value}; it must be at most {most:g}")


def transaction_timeout_ms(name: str, timeout_s: float) -> int:
    """A transaction's time-out in the unit of requests to the coordinator.

    Args:
        name: the argument's name, for the error.
        timeout_s: the argument's value.

    Raises:
        ArgumentError: the time-out is no number.
        ConfigError: the time-out is not finite, below 1 ms, or more than a request can hold.
    """
    require((int, float), **{name: timeout_s})
    timeout_ms = int(timeout_s * 1000) if math.isfinite(timeout_s * 1000) else 0
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise ConfigError(
            f"`{name}` is {timeout_s} s; a transaction's time-out is at least 0.001 s,"
            f" and at most {TIMEOUT_MS_MAX / 1000:g} s",
            hint="give how many seconds the transaction may stay open; the cluster's own limit is"
            " the setting txn_timeout_ms_max of its workers",
        )
    return timeout_ms


class TransactionKeywords(TypedDict, total=False):
    """Keyword arguments of `TransactionClient` that set a field of `TransactionOptions`."""

    request_timeout_s: float
    resend_s: float
    open_transactions_max: int
    linger_ms: float
    metadata_max_age_s: float
    direct_line: bool
    allow_compacted: bool
    value_serializer: Serializers | None
    key_serializer: Serializers | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """Time-outs, limits and choices of a `TransactionClient`.

    Attributes:
        request_timeout_s: how long a coordinator may take to answer, repeats included, > 0; at
            most 600.
        resend_s: time after which an unanswered request is sent again, > 0; later repeats wait
            longer.
        open_transactions_max: limit of open transactions, >= 1; at the limit, entering another one
            waits until one ends.
        linger_ms: how long at most the producer gathers records before it sends them. `commit`
            ends the wait early, unless another transaction is about to send, or most commits are
            under way. The default is that of Kafka's own producers.
        metadata_max_age_s: longest time until added partitions, topics that were created again, and
            added coordinators are noticed, > 0 (C13, C14). Kafka's own default.
        direct_line: whether to ask coordinators by a direct line where their worker takes lines
            (`line_host`, J). A commit then waits for the log alone. Requests go by topic
            whenever there is no line.
        allow_compacted: whether transactions may write to topics that compact (C18). Only for
            topics whose keys are never written again: an aborted record, also a tombstone, makes
            Kafka's cleaner delete the committed value of its key, for good.
        value_serializer: makes bytes of the values that `send` is given: a serializer of
            `confluent_kafka`, also an asynchronous one, or any callable that returns bytes; or a
            mapping of topics to these. None: values are bytes.
        key_serializer: the same for keys.

    Raises:
        ArgumentError: a serializer is none.
        ConfigError: a value is out of its bounds.
    """

    request_timeout_s: float = 30.0
    resend_s: float = 1.0
    open_transactions_max: int = 4096
    linger_ms: float = 5.0
    metadata_max_age_s: float = METADATA_MAX_AGE_S
    direct_line: bool = False
    allow_compacted: bool = False
    value_serializer: Serializers | None = None
    key_serializer: Serializers | None = None

    def __post_init__(self) -> None:
        for name in ("value_serializer", "key_serializer"):
            check_serializers(name, getattr(self, name))
        require_positive(
            request_timeout_s=self.request_timeout_s,
            resend_s=self.resend_s,
            open_transactions_max=self.open_transactions_max,
            metadata_max_age_s=self.metadata_max_age_s,
        )
        require(bool, direct_line=self.direct_line, allow_compacted=self.allow_compacted)
        require_at_least(0, linger_ms=self.linger_ms)
        require_at_most(LINGER_MS_MAX, linger_ms=self.linger_ms)


def transaction_options(**options: Unpack[TransactionKeywords]) -> TransactionOptions:
    """The options that an application gave, with defaults for the rest.

    Raises:
        ArgumentError: a name is not an option, or a value is of another type.
        ConfigError: a value is out of its bounds.
    """
    check_keywords("TransactionClient", options, TransactionKeywords.__annotations__)
    return TransactionOptions(**options)
