"""Checks the arguments of the client library before anything is opened or sent.

*Source*: docs/protocols C2. A client does not know the longest time-out that a cluster allows; the
coordinator refuses a longer one. This module refuses what the request's field cannot hold.
"""

import math

from stilltide.pipeline.core.coordinator.pool import POOLED_MS_MAX
from stilltide.pipeline.errors import ConfigError

TIMEOUT_MS_MAX = 2**64 - 1 - POOLED_MS_MAX
"""The longest time-out that a request can hold: its field has 64 bits, and the time-out of a
transaction opened ahead is `POOLED_MS_MAX` longer (C9)."""


def require_positive(**options: float) -> None:
    """Refuses options that are not above 0.

    Raises:
        ConfigError: an option is not above 0; the error names the first such option.
    """
    for name, value in options.items():
        if not value > 0:  # NaN is refused as well
            raise ConfigError(f"`{name}` is {value}; it must be above 0")


def require_at_least(least: float, **options: float) -> None:
    """Refuses options below `least`.

    Raises:
        ConfigError: an option is below `least`; the error names the first such option.
    """
    for name, value in options.items():
        if not value >= least:  # NaN is refused as well
            raise ConfigError(f"`{name}` is {value}; it must be at least {least:g}")


def transaction_timeout_ms(name: str, timeout_s: float) -> int:
    """A transaction's time-out in the unit of requests to the coordinator.

    Args:
        name: the argument's name, for the error.
        timeout_s: the argument's value.

    Raises:
        ConfigError: the time-out is not finite, below 1 ms, or more than a request can hold.
    """
    timeout_ms = int(timeout_s * 1000) if math.isfinite(timeout_s * 1000) else 0
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise ConfigError(
            f"`{name}` is {timeout_s} s; a transaction's time-out is at least 0.001 s,"
            f" and at most {TIMEOUT_MS_MAX / 1000:g} s",
            hint="give how many seconds the transaction may stay open; the cluster's own limit is"
            " the setting txn_timeout_ms_max of its workers",
        )
    return timeout_ms
