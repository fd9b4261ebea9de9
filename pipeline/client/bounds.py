"""What the arguments of the client library may be, checked before anything is opened or sent.

*Source*: protocols.md C2. A client does not know the longest time-out that a cluster allows: its
coordinator refuses what is longer. What the field of the request cannot hold is refused here.
"""

import math

from stilltide.pipeline.core.coordinator.pool import POOLED_MS_MAX
from stilltide.pipeline.errors import ConfigError

TIMEOUT_MS_MAX = 2**64 - 1 - POOLED_MS_MAX
"""The field has 64 bits, and transactions opened ahead are asked for a little longer (C9)."""


def require_positive(**options: float) -> None:
    """Refuses what is not above 0.

    Raises:
        ConfigError: names the first of the options that is not.
    """
    for name, value in options.items():
        if not value > 0:  # NaN is refused as well
            raise ConfigError(f"`{name}` is {value}; it must be above 0")


def transaction_timeout_ms(name: str, timeout_s: float) -> int:
    """A transaction's time-out as its coordinator is asked for it.

    Args:
        name: of the argument, for the error.
        timeout_s: its value.

    Raises:
        ConfigError: it is not finite, below 1 ms, or more than a request can hold.
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
