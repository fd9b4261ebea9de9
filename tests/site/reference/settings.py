"""The reference of settings, from the class, its docstring and the table of bounds."""

import inspect
import re
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from stilltide.pipeline.config.bounds import BOUNDS
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.config.sources import ENV_PREFIX, FILE_SUFFIX
from tests.site.reference.text import code, with_rules

_HEAD = f"""\
# Settings

Every setting of a worker, a link or a client. A setting is an option of a command, else a variable,
else a line of the file that `STILLTIDE_CONFIG` or `stilltide --config` names, else its default.
[Operating](../settings.md) shows a file and says how settings of TLS and SASL are spelled
in it.

The variable of a setting is its name in capitals with the prefix `{ENV_PREFIX}`. A variable with
the suffix `{FILE_SUFFIX}` names a file that holds the value. An unknown name is an error.

"""
_ATTRIBUTE = re.compile(r"^    (\w[\w, \n]*?):(?=\s)", re.MULTILINE)


def page() -> str:
    """The text of the page."""
    meanings = described()
    return _HEAD + "\n".join(
        line
        for name, field in Settings.model_fields.items()
        for line in _entry(name, field, meanings)
    )


def _entry(name: str, field: FieldInfo, meanings: dict[str, str]) -> Iterator[str]:
    yield f"## {name}\n\n{with_rules(meanings[name])}\n"
    rows = [
        ("variable", code(ENV_PREFIX + name.upper())),
        ("value", values(field)),
        ("default", shown_default(field)),
    ]
    if bound := BOUNDS.get(name):
        least, most = (f"{one:,.10g}".replace(",", " ") for one in (bound.least, bound.most))
        rows.append(("bounds", f"{least} to {most}, since {bound.reason}"))
    yield "".join(f"- {name.capitalize()}: {value}\n" for name, value in rows)


def described() -> dict[str, str]:
    """The meaning of each setting, from the section `Attributes` of the class's docstring."""
    docstring = inspect.getdoc(Settings) or ""
    section = docstring.partition("Attributes:\n")[2]
    starts = [*_ATTRIBUTE.finditer(section)]
    ends = [*(one.start() for one in starts[1:]), len(section)]
    found: dict[str, str] = {}
    for start, end in zip(starts, ends, strict=True):
        meaning = " ".join(section[start.end() : end].split())
        for name in start[1].replace("\n", " ").split(","):
            found[name.strip()] = meaning[:1].upper() + meaning[1:]
    return found


def shown_default(field: FieldInfo) -> str:
    """A default as `stilltide config show` prints it."""
    if field.default in (None, "", {}):
        return "none"
    return code(str(field.default).lower() if isinstance(field.default, bool) else field.default)


def values(field: FieldInfo) -> str:
    """What a setting may be."""
    kinds = [field.annotation, *get_args(field.annotation)]
    choices = [one for kind in kinds if get_origin(kind) is Literal for one in get_args(kind)]
    names = {bool: "true or false", int: "a whole number", float: "a number", SecretStr: "a secret"}
    named = [name for kind, name in names.items() if kind in kinds]
    return " or ".join([*map(code, choices), *named]) or "a text"
