"""The reference of the package: directives that mkdocstrings replaces by the docstrings."""

import inspect

import stilltide
from tests.site.reference.text import code, table

_HEAD = """\
# Python API

What applications import from `stilltide`. Everything else is internal and may change. The
[client library](../tutorial.md) shows the calls in programs.

"""


_FIRST = ("TransactionClient", "Transaction", "Subscription", "Message")
"""What readers look for most; the other names follow in the order of the alphabet."""

_SHORT = ("KafkaConfig", "Settings")
"""Shown without their methods, which are for Stilltide itself."""


def public() -> dict[str, object]:
    """The public names with what they are, in the order of the page."""
    names = dict.fromkeys((*_FIRST, *stilltide.__all__))
    return {name: getattr(stilltide, name) for name in names}


def is_error(value: object) -> bool:
    """Whether a public name is an exception."""
    return inspect.isclass(value) and issubclass(value, BaseException)


def page() -> str:
    """The text of the page."""
    found = public()
    errors = {name: value for name, value in found.items() if is_error(value)}
    parts = [_HEAD, "## Clients, records and settings\n\n"]
    parts += [_directive(name, value) for name, value in found.items() if name not in errors]
    parts += ["## Errors\n\n", table(("error", "is a", "meaning"), map(_row, errors.values()))]
    parts += ["\n", _directive("StilltideError", errors["StilltideError"])]
    return "".join(parts)


def _directive(name: str, value: object) -> str:
    assert inspect.isclass(value) or inspect.isfunction(value), name
    other = f"`{name}` is:\n\n" if name != value.__name__ else ""
    options = "    options:\n      members: false\n" if name in _SHORT else ""
    return f"{other}::: {value.__module__}.{value.__qualname__}\n{options}\n"


def _row(error: object) -> tuple[str, str, str]:
    assert inspect.isclass(error)
    meaning = " ".join((inspect.getdoc(error) or "").split())
    return code(error.__name__), code(error.__bases__[0].__name__), meaning
