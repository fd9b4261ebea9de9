"""Log lines of every process: one form, on stderr, because stdout is for data.

*Invariants*: of a library's repeated line, as each library logs while a broker is away, the first
is logged at once and later ones rarely; lines held back are counted. Text of strangers, in fields,
in lines of libraries and in tracebacks, is made printable, so that nobody forges a line or sends a
terminal a control sequence. Tracebacks show no local variables, which may be secrets.

structlog imports rich, which takes longer than the import of the whole client library: this module
imports structlog when the first line is logged, or when a process sets up its logging.
"""

import atexit
import logging
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from stilltide.pipeline.log_folding import CLIENTS, LIBRDKAFKA, LineFold
from stilltide.schemas.printable import printable, printable_lines

LEVELS = ("debug", "info", "warning", "error")

FORMATS = ("text", "json")

LIBRARY_PERIOD_S = 10.0
"""Period in which at most one line from each place in a library's code is logged."""

_OURS = frozenset({"stilltide"})

_OF_MANY_LINES = frozenset({"exception", "stack"})
"""Fields whose line breaks are the interpreter's."""


class LazyLogger:
    """A structlog logger that is made when its first line is logged.

    Args:
        name: name of the module that logs.
    """

    __slots__ = ("_logger", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def __getattr__(self, method: str) -> Any:
        """A method of the structlog logger: `info`, `warning`, `error`, `debug`, `bind`."""
        if self._logger is None:
            import structlog  # noqa: PLC0415 - see the module's docstring

            if not structlog.is_configured():  # by default it would write to stdout
                return getattr(structlog.wrap_logger(structlog.PrintLogger(sys.stderr)), method)
            self._logger = structlog.get_logger(self._name)
        return getattr(self._logger, method)


def get_logger(name: str) -> LazyLogger:
    """The logger of a module, `__name__`; costs nothing until the module logs."""
    return LazyLogger(name)


class LibraryFilter(logging.Filter):
    """Passes the first line from a place in the code, then one per period, with a count.

    A connection that broke is told in one line: a library's traceback says nothing more of it.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._next_s: dict[tuple[str, int], float] = {}
        self._held: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the line; adds the number of lines held back before it."""
        if record.name.partition(".")[0] in _OURS:
            return True
        place = (record.pathname, record.lineno)
        now_s = self._now_s()
        if now_s < self._next_s.get(place, now_s):
            self._held[place] = self._held.get(place, 0) + 1
            return False
        self._next_s[place] = now_s + LIBRARY_PERIOD_S
        cause = record.exc_info[1] if record.exc_info else None
        if isinstance(cause, OSError):
            record.msg, record.args = f"{record.getMessage()}: {cause}", None
            record.exc_info = None
        if suppressed := self._held.pop(place, 0):
            record.msg, record.args = (
                f"{record.getMessage()} ({suppressed} more like it since)",
                None,
            )
        return True


_SHOWN_BY_REPR = (int, float, list, tuple, dict, set)
"""Values that the renderer shows by `repr`, which escapes control characters in their text."""


def escape_fields(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """The fields of a log line with the text in them made printable; a processor of structlog."""
    for name, value in event.items():
        if name in _OF_MANY_LINES:
            event[name] = printable_lines(str(value))
        elif isinstance(value, str):
            event[name] = printable(value)
        elif value is not None and not isinstance(value, _SHOWN_BY_REPR):
            event[name] = printable(repr(value))
    return event


def line_fold() -> LineFold | None:
    """The filter that holds lines about absent clusters; None without `configure_logging`."""
    filters = [it for handler in logging.getLogger().handlers for it in handler.filters]
    return next((it for it in filters if isinstance(it, LineFold)), None)


def _stamped(_logger: Any, _method: str, event: Any) -> Any:
    """Adds the time of a line: when it was written, also if it is logged later."""
    record = event.get("_record")
    written = datetime.now(UTC) if record is None else datetime.fromtimestamp(record.created, UTC)
    event["timestamp"] = written.astimezone().isoformat(timespec="milliseconds")
    return event


def _formatter(steps: Sequence[Any], *, is_json: bool) -> logging.Formatter:
    import structlog  # noqa: PLC0415 - see the module's docstring

    renderer: Any = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    if is_json:
        renderer = structlog.processors.JSONRenderer(default=str)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=steps,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            escape_fields,
            renderer,
        ],
    )


def hear_clients() -> None:
    """Has lines of Kafka's clients logged, which `configure_logging` may have silenced.

    For processes that run until stopped, which go on when a cluster is away. Other commands report
    what the client has said as the detail of their error.
    """
    _set_clients(logging.NOTSET)


def _set_clients(level: int) -> None:
    for name in (LIBRDKAFKA, *CLIENTS):
        logging.getLogger(name).setLevel(level)


def configure_logging(
    level: str = "info", form: str = "text", *, silences_clients: bool = False
) -> None:
    """Sends Stilltide's log events from `level` up, and warnings of libraries, to stderr.

    Args:
        level: one of `LEVELS`; with `debug`, lines of libraries from info up are logged, too.
        form: one of `FORMATS`; `json` gives one object on each line.
        silences_clients: whether lines of Kafka's clients wait for `hear_clients`; not with
            `debug`.
    """
    import structlog  # noqa: PLC0415 - see the module's docstring

    steps: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        _stamped,
    ]
    handler = logging.StreamHandler(sys.stderr)
    seldom = LibraryFilter()

    def release(record: logging.LogRecord) -> None:
        if seldom.filter(record):
            with handler.lock or nullcontext():
                handler.emit(record)

    fold = LineFold(release)
    handler.addFilter(fold)
    handler.addFilter(seldom)
    atexit.register(fold.flush)
    handler.setFormatter(_formatter(steps, is_json=form == "json"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO if level == "debug" else logging.WARNING)
    for package in ("stilltide.connectors", "stilltide.pipeline"):
        logging.getLogger(package).setLevel(level.upper())
    # Faust's timers warn of each round that takes longer than its interval, as many do on a busy
    # machine and while a broker is away.
    quiet = logging.NOTSET if level == "debug" else logging.ERROR
    logging.getLogger("mode.timers").setLevel(quiet)
    _set_clients(logging.CRITICAL if silences_clients and level != "debug" else logging.NOTSET)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *steps,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
