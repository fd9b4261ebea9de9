"""Units of systemd as lists of directives, and the names of all directives."""

from pathlib import Path
from typing import NamedTuple

_DIRECTIVES = Path(__file__).parent / "systemd_directives.txt"

OLDEST = 252
"""The oldest version of systemd whose directives are known here."""


class Directive(NamedTuple):
    """One line of a unit."""

    section: str
    name: str
    value: str


def known_directives() -> dict[tuple[str, str], int]:
    """The version of systemd that knows a directive, by section and name; `OLDEST` or newer."""
    found: dict[tuple[str, str], int] = {}
    section = ""
    for line in _DIRECTIVES.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif not line.startswith("#"):
            name, _, version = line.partition(" ")
            found[section, name] = int(version or OLDEST)
    return found


def read_unit(path: Path) -> list[Directive]:
    """The directives of a unit or drop-in, in order.

    Raises:
        ValueError: a line is neither a section, a comment nor a directive inside of a section.
    """
    found: list[Directive] = []
    section = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line.strip("[]")
            continue
        name, equals, value = line.partition("=")
        if not equals or not section or not name.isalnum() or line.endswith("\\"):
            raise ValueError(f"{path.name}:{number}: {line!r} is no directive on one line")
        found.append(Directive(section, name, value))
    return found


def values(unit: list[Directive], name: str) -> list[str]:
    """What a unit gives for a directive, in order."""
    return [directive.value for directive in unit if directive.name == name]


def read_environment(path: Path) -> dict[str, str]:
    """The variables of an environment file, also those that stand there as a comment to uncomment.

    Raises:
        ValueError: a line is neither a comment nor a variable.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("# "):
            continue
        name, equals, value = line.removeprefix("#").partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"{path.name}:{number}: {line!r} is no variable")
        found[name] = value.strip('"')
    return found
