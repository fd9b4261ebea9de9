"""The reference of exit codes, from the epilogs of the commands."""

import re

from stilltide.pipeline.cli.main import EXIT_FAILURE, EXIT_INTERRUPTED
from tests.site.reference.commands import Found, commands
from tests.site.reference.text import code, table

WRONG_USAGE = 2
"""The code of click."""

_BLOCK = re.compile(r"Exit codes:\n((?:  +\d.*(?:\n(?!\s*\n).*)*\n?)+)")
_LINE = re.compile(r"^  +(\d+(?:, \d+)*) +(.+?)(?=\n  +\d|\n*\Z)", re.MULTILINE | re.DOTALL)

_HEAD = """\
# Exit codes

The code says what a command found, so that a script can act on it without reading the output.

"""
_ALL = {
    0: "done; for a process that runs until it is stopped: it was stopped by SIGTERM or Ctrl-C",
    EXIT_FAILURE: "the command failed; the error on stderr has a hint with the next step",
    WRONG_USAGE: "wrong usage: an unknown command, option or value",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C",
}


def told(found: Found) -> dict[int, str]:
    """The codes that a command's help tells of, with their meaning there."""
    block = _BLOCK.search((found.command.epilog or "").replace("\b", ""))
    return {
        int(number): " ".join(meaning.split())
        for numbers, meaning in (_LINE.findall(block[1]) if block else ())
        for number in numbers.split(", ")
    }


def page() -> str:
    """The text of the page."""
    parts = [
        _HEAD,
        "## Codes of every command\n\n",
        table(("code", "meaning"), [(str(a), b) for a, b in _ALL.items()]),
    ]
    special: dict[int, list[tuple[str, str]]] = {}
    for found in commands():
        for number, meaning in told(found).items():
            if number not in _ALL:
                special.setdefault(number, []).append(
                    (" ".join(("stilltide", *found.words)), meaning)
                )
    for number in sorted(special):
        rows = [(code(command), meaning) for command, meaning in special[number]]
        parts += [f"\n## Code {number}\n\n", table(("command", "meaning"), rows)]
    return "".join(parts)
