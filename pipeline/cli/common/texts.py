"""Checks the texts of a command line before a command sees them.

*Source*: `stilltide.connectors.names`: a text that a client of Kafka cannot take may end the
process. Bytes of a command line that are not UTF-8 become halves of characters.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import click

from stilltide.connectors.errors import InvalidTextError
from stilltide.connectors.names import check_name, check_setting, check_text, check_topic_name
from stilltide.schemas.topics import is_topic_pattern


class _Text(click.types.StringParamType):
    """A text of an option, which may be empty or hold JSON of several lines."""

    def check(self, value: str, what: str) -> None:
        """Passes the value; raises `InvalidTextError`."""
        check_setting(value, what)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, if it is one that can be used."""
        text = super().convert(value, param, ctx)
        try:
            self.check(text, "the value")
        except InvalidTextError as error:
            self.fail(f"{error.primary}; {error.hint}", param, ctx)
        return text


class _Argument(_Text):
    """A text that a command needs, such as a topic."""

    def check(self, value: str, what: str) -> None:
        """Passes the value; raises `InvalidTextError`."""
        check_text(value, what)


class _Group(_Text):
    """The name of a consumer group."""

    def check(self, value: str, what: str) -> None:
        """Passes the value; raises `InvalidTextError`."""
        check_name(value, what)


class _Topic(_Text):
    """The name of a topic, or a pattern of names."""

    def check(self, value: str, what: str) -> None:
        """Passes the value; raises `InvalidTextError`."""
        if not is_topic_pattern(value):
            check_topic_name(value, what)


_NAMES: Mapping[str, type[_Text]] = MappingProxyType(
    {"group": _Group, "topic": _Topic, "topics": _Topic}
)
"""The type of arguments, by their name."""


def check_texts(command: click.Command) -> click.Command:
    """Has a command, and those below it, check each text; returns the command."""
    for param in command.params:
        if type(param.type) is click.types.StringParamType:
            is_option = isinstance(param, click.Option)
            param.type = (_Text if is_option else _NAMES.get(param.name or "", _Argument))()
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            check_texts(inner)
    return command
