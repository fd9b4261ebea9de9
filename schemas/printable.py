"""Text that a stranger wrote, made safe for terminals, logs and pages.

Transactional ids, names of clients and groups, and reasons in records are any text. Printed as they
are, control characters move a terminal's cursor, change its title or forge a line of a log, and
marks of direction turn the rest of a line around.

*Source*: Unicode categories Cc, Cf, Cs, Co, Cn, Zl, Zp and Zs (all but the space), which are those
that `str.isprintable` refuses.

*Invariants*: of what `printable` returns every character is printable; text that is printable
already is returned unchanged.
"""

SHORT_LENGTH_MAX = 32
"""Characters of a name where many names have one line each, as in a plot."""

_LAYOUT = "\n"


def printable(text: str) -> str:
    r"""The text with every character that does not print as its escape, such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def printable_lines(text: str) -> str:
    """As `printable`, with the line breaks of text whose layout is the program's own."""
    if text.isprintable():
        return text
    return _LAYOUT.join(map(printable, text.split(_LAYOUT)))


def shortened(text: str, length_max: int = SHORT_LENGTH_MAX) -> str:
    """As `printable`, with the middle left out of text that is longer than `length_max`."""
    text = printable(text)
    if len(text) <= length_max:
        return text
    kept = (length_max - 3) // 2
    return f"{text[:kept]}...{text[-kept:]}"
