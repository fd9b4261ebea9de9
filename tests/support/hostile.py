"""Names that a stranger may give to what a program prints."""

ESCAPE = "\x1b[2J\x1b]0;title\x07"
"""Clears a terminal and sets its title."""

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": '"><img src=x onerror=alert(1)>',
    "bad formula": r"pay$\badmacro$",
    "formula": "$x_{1}$ ${",
    "markup": "[red]x[/blue] [/] :smile:",
    "escape": f"a{ESCAPE}b",
    "line": "a\nERROR forged=line\r\x08",
    "c1": "a\x9b31mb\x85",
    "right-to-left": "a\u202egnp.exe\u2066\u200f",
    "line separator": "a\u2028b\u2029c",
    "surrogate": "a\udcffb",
    "nothing": "\x00",
    "private": "\ue000\ufdd0",
    "underscore": "_hidden",
    "long": "n" * 249,
    "percent": "%s %d {0} {x}",
}
"""Hostile names by kind."""


def is_harmless(text: str) -> bool:
    """Whether a terminal and a log show the text as it is, apart from its line breaks."""
    return all(line.isprintable() for line in text.split("\n"))
