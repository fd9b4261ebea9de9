"""Traces by OpenTelemetry: whether there are any, and what a transaction tells of itself.

*Source*: docs/tracing.md. `spans` makes the spans; it imports OpenTelemetry, so it is loaded only
where the application has set a provider of tracers.

*Invariants*: without a provider nothing is imported, and a record costs one comparison.
"""

import os
import sys
from collections.abc import AsyncGenerator, Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from stilltide.pipeline.tracing.spans import Tracing

_PROVIDER_VARIABLE = "OTEL_PYTHON_TRACER_PROVIDER"
"""Has OpenTelemetry load a provider when it is first asked for one."""

P = ParamSpec("P")
T = TypeVar("T")


class CheckedHeaders(tuple[tuple[str, bytes | None], ...]):
    """Headers that were made here, and need no check."""

    __slots__ = ()


class TransactionTrace:
    """What one transaction tells its trace; here, nothing is kept: there are no traces."""

    def begin(self) -> None:
        """The transaction is used for the first time."""

    def enter(self) -> None:
        """The caller's task, or thread, works in the transaction from now on."""

    def leave(self) -> None:
        """The caller's task, or thread, does not any more."""

    def opened(self, txn: str, *, ahead: bool) -> None:
        """The transaction is open at its coordinator, perhaps opened ahead (C9)."""

    def event(self, name: str, **attributes: str | int | bool) -> None:
        """A step was done; the names of attributes are those after `stilltide.transaction.`."""

    def failed(self, error: BaseException) -> None:
        """An error leaves the block of the transaction, or one of its calls."""

    def ended(self, outcome: str) -> None:
        """The transaction is over for this process; later calls do nothing.

        Args:
            outcome: a state of `Transaction`.
        """


UNTRACED = TransactionTrace()
"""The trace of every transaction while there are no traces."""


def tracing_of(client_id: str, *, group: str = "") -> "Tracing | None":
    """The traces of one client, subscription or link; None: the application has no traces.

    Args:
        client_id: name of the client in Kafka.
        group: name of the consumer group; empty for a client that has none.
    """
    if "opentelemetry.trace" not in sys.modules and _PROVIDER_VARIABLE not in os.environ:
        return None
    try:
        from stilltide.pipeline.tracing.spans import Tracing, tracer  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        return None
    made = tracer()
    return None if made is None else Tracing(made, client_id, group)


class Traced(Protocol):
    """A reader whose messages are processed in traces, or, for None, without them."""

    tracing: "Tracing | None"


R = TypeVar("R", bound=Traced)


def processed(
    read: Callable[Concatenate[R, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[R, P], AsyncGenerator[T, None]]:
    """Has the body of a loop over a reader's messages run in the trace of each message."""

    @wraps(read)
    def traced(reader: R, /, *args: P.args, **options: P.kwargs) -> AsyncGenerator[T, None]:
        messages, tracing = read(reader, *args, **options), reader.tracing
        return messages if tracing is None else tracing.processed(messages)

    return traced
