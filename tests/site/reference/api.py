"""The reference of the package: directives that mkdocstrings replaces by the docstrings."""

import importlib
import inspect

import stilltide
import stilltide.errors
from tests.site.reference.text import code, table

_HEAD = """\
# Python API

What applications import from `stilltide` and its public modules. Everything else is internal and
may change. The
[client library](../tutorial.md) shows the calls in programs.

"""


_FIRST = ("TransactionClient", "Transaction", "Subscription", "Message")
"""What readers look for most; the other names follow in the order of the alphabet."""

_PUBLIC_MODULES = (
    "stilltide.sync",
    "stilltide.databases",
    "stilltide.faststream",
    "stilltide.testing",
    "stilltide.spark",
)
"""Modules of public names, each with a section of its own."""

_SHORT = ("KafkaConfig", "KafkaConnector", "Settings")
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
    errors = {name: getattr(stilltide.errors, name) for name in stilltide.errors.__all__}
    parts = [_HEAD, "## Clients, records and settings\n\n"]
    parts += [_directive(name, value) for name, value in found.items() if not is_error(value)]
    parts += [_section(name) for name in _PUBLIC_MODULES]
    parts += [
        "## Errors\n\nAll of them are in `stilltide.errors`.\n\n",
        table(("error", "is a", "meaning"), map(_row, errors.values())),
    ]
    parts += ["\n", _directive("StilltideError", errors["StilltideError"])]
    return "".join(parts)


def _section(name: str) -> str:
    """The names of a public module that `stilltide` itself does not have."""
    module = importlib.import_module(name)
    values = {one: getattr(module, one) for one in module.__all__}
    own = {
        one: value for one, value in values.items() if getattr(stilltide, one, None) is not value
    }
    parts = [f"## {code(name)}\n\n{inspect.getdoc(module)}\n\n"]
    return "".join(parts + [_directive(one, value) for one, value in own.items()])


def _directive(name: str, value: object) -> str:
    assert inspect.isclass(value) or inspect.isfunction(value), name
    other = f"`{name}` is:\n\n" if name != value.__name__ else ""
    options = "    options:\n      members: false\n" if name in _SHORT else ""
    return f"{other}::: {value.__module__}.{value.__qualname__}\n{options}\n"


def _row(error: object) -> tuple[str, str, str]:
    assert inspect.isclass(error)
    meaning = " ".join((inspect.getdoc(error) or "").split())
    return code(error.__name__), code(error.__bases__[0].__name__), meaning
