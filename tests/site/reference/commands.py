"""The reference of commands, from the tree of click."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import click

from stilltide.pipeline.cli.main import cli
from tests.site.reference.text import code, table

_HEAD = """\
# Commands

Every command of `stilltide`, as `--help` shows it. Data goes to stdout; progress and diagnostics go
to stderr. [Exit codes](exit-codes.md) lists the codes with which commands end.

"""


_CODE = re.compile(r"(`[^`]*`)")
_MARKUP = re.compile(r"[*_<\[\]]")


class Found(NamedTuple):
    """A command and the words that call it, without `stilltide`."""

    words: tuple[str, ...]
    command: click.Command


def commands() -> list[Found]:
    """Every command that does something, in the order of the help; no groups."""
    context = click.Context(cli, info_name="stilltide")
    return [*_below(context, (), cli)]


def _below(
    context: click.Context, words: tuple[str, ...], command: click.Command
) -> Iterator[Found]:
    if not isinstance(command, click.Group):
        yield Found(words, command)
        return
    if command.invoke_without_command:
        yield Found(words, command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        if not child.hidden:
            yield from _below(context, (*words, name), child)


def page() -> str:
    """The text of the page."""
    parts = [_HEAD, "## stilltide\n\n", _body(Found((), cli))]
    noun = ""
    for found in commands():
        if found.words[0] != noun:
            noun = found.words[0]
            parts.append(f"## stilltide {noun}\n\n")
        if len(found.words) > 1:
            parts.append(f"### stilltide {' '.join(found.words)}\n\n")
        parts.append(_body(found))
    return "".join(parts)


def _body(found: Found) -> str:
    context = click.Context(found.command, info_name=" ".join(("stilltide", *found.words)))
    usage = " ".join((context.command_path, *found.command.collect_usage_pieces(context)))
    parts = [f"```text\n{usage}\n```\n\n", f"{_prose(found.command.help or '')}\n\n"]
    options = [
        (code(names), help_)
        for one in found.command.get_params(context)
        if (record := one.get_help_record(context))
        for names, help_ in [record]
    ]
    if options:
        parts.append(
            table(("option", "meaning"), [(name, _one_line(text)) for name, text in options])
        )
    if epilog := (found.command.epilog or "").replace("\b", "").strip("\n "):
        parts.append(f"\n```text\n{_dedented(epilog)}\n```\n")
    return "".join([*parts, "\n"])


def _one_line(text: str) -> str:
    # Outside of code no letter of a help text is markup.
    parts = _CODE.split(" ".join(text.split()))
    return "".join(one if one[:1] == "`" else _MARKUP.sub(r"\\\g<0>", one) for one in parts)


def _prose(text: str) -> str:
    """A help text as Markdown: a paragraph that click keeps as it is becomes code."""
    done: list[str] = []
    for paragraph in text.replace("\f", "\n").split("\n\n"):
        if paragraph.lstrip().startswith("\b"):
            done.append(f"```text\n{_dedented(paragraph.replace(chr(8), '').strip(chr(10)))}\n```")
        else:
            done.append(_one_line(paragraph))
    return "\n\n".join(done)


def _dedented(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    # A block of its own begins with two empty lines where click keeps paragraphs apart.
    return "\n".join(
        line for line, before in zip(lines, ["", *lines], strict=False) if line or before
    )
