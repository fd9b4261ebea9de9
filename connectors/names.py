"""The one check of every text before it reaches a client of Kafka.

*Source*: measured with librdkafka 2.16. Some texts end the process: a group's name without letters
(an assertion), half of a character in an option, header, topic or group (address 0), a topic's
name of 40 000 letters. Others are cut short or changed in silence: at a NUL, and at spaces around
the name of a group.

*Refuses*: to mend a text. The name that an application meant is not known.
"""

import re
from collections.abc import Collection
from typing import cast

from stilltide.connectors.errors import InvalidTextError
from stilltide.schemas.topics import SHOWN_NAME, is_topic_name

TEXT_BYTES_MAX = 32_767
"""The most bytes of a name: its length in Kafka's requests has 16 bits."""

OPTION_BYTES_MAX = 1024 * 1024
"""The most bytes of an option of a client; certificates are options, too."""

PORT_MAX = 65_535

_SEPARATED = re.compile(r"[\s,;]+")
_NO_HOST = re.compile(r"[\s@/]")
_SCHEME = re.compile(r"^\w+://")
_DELETE, _CONTROLS_END = 127, 160


def split_servers(servers: str) -> list[str]:
    """The addresses in a text of addresses, separated by commas."""
    return [server.strip() for server in servers.split(",")]


def is_server(server: str) -> bool:
    """Whether a text is the address `host:port` of a broker."""
    host, _, port = server.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 1 <= int(port) <= PORT_MAX
    return bool(host) and is_port and not _NO_HOST.search(host)


def check_servers(servers: object) -> None:
    """Passes addresses `host:port` of brokers, separated by commas.

    Raises:
        InvalidTextError: one of them has another form.
    """
    check_setting(servers, "the address of the cluster")
    for server in split_servers(cast("str", servers)):
        if not is_server(server):
            plain = _SCHEME.sub("", server)
            example = plain if is_server(plain) else "127.0.0.1:9092"
            raise InvalidTextError(
                f"the address of a broker is {server[:SHOWN_NAME]!r}, which is not host:port",
                hint=f"for example {example!r}; separate several by commas",
            )


def check_topic_name(name: object, what: str = "the topic") -> None:
    """Passes a name that a topic can have.

    Args:
        name: the name.
        what: the argument, setting or option that holds the name, for the error.

    Raises:
        InvalidTextError: no topic can have the name.
    """
    if not isinstance(name, str) or not is_topic_name(name):
        check_text(name, what)
        assert isinstance(name, str)
        several = _SEPARATED.split(name.strip())
        raise InvalidTextError(
            f"{what} is {name[:SHOWN_NAME]!r}, which no topic can be named",
            hint="name each topic by itself, not several in one text"
            if len(several) > 1 and all(map(is_topic_name, several))
            else "name a topic: 1 to 249 of a-z, A-Z, 0-9, `.`, `_` and `-`",
        )


def check_topic_names(topics: object) -> None:
    """Passes one or more names of topics, to be read together.

    Raises:
        InvalidTextError: there are none, a single text is given, or no topic can have a name.
    """
    if not isinstance(topics, Collection) or isinstance(topics, str | bytes):
        raise InvalidTextError(
            f"the topics are a {type(topics).__name__}, not a list of names",
            hint='for example ["orders"]',
        )
    if not topics:
        raise InvalidTextError("no topic is named", hint='name one or more, such as ["orders"]')
    for name in cast("Collection[object]", topics):
        check_topic_name(name, "a topic")


def check_name(name: object, what: str) -> None:
    """Passes a name of a group or a client, or a transactional id; raises as `check_text`."""
    check_text(name, what)
    assert isinstance(name, str)
    if name != name.strip():
        raise InvalidTextError(
            f"{what} is {name[:SHOWN_NAME]!r}, with spaces around it",
            detail="clients of Kafka differ in whether these spaces belong to the name",
            hint="take the spaces away",
        )


def check_text(text: object, what: str) -> None:
    """Passes a text that every client of Kafka takes as it is.

    Raises:
        InvalidTextError: the text is none, empty, too long, or holds what no text holds.
    """
    if not isinstance(text, str):
        raise InvalidTextError(
            f"{what} is a {type(text).__name__}, not a text", hint="give a value of type str"
        )
    if not text.strip():
        raise InvalidTextError(f"{what} is empty", hint="give a text of one letter or more")
    _check_letters(text, what, controls=False)
    _check_size(text, what, TEXT_BYTES_MAX)


def check_option(name: object, value: object) -> None:
    """Passes an option of librdkafka; an error does not show the value, which may be a secret.

    Raises:
        InvalidTextError: the name, or the value, is none that the client can be given.
    """
    check_text(name, "the name of a Kafka option")
    if not isinstance(value, bool | int | float):
        check_setting(value, f"the Kafka option {name}")


def check_setting(value: object, what: str) -> None:
    """Passes the text of a setting, which may be empty or have several lines.

    An error does not show the text, which may be a secret.

    Raises:
        InvalidTextError: the value is none that a client can be given.
    """
    if not isinstance(value, str):
        raise InvalidTextError(
            f"{what} is a {type(value).__name__}, not a text", hint="give a value of type str"
        )
    _check_letters(value, what, controls=True)
    _check_size(value, what, OPTION_BYTES_MAX)


def check_config(topic: str, name: object, value: object) -> None:
    """Passes a config of a topic; raises as `check_text`."""
    check_text(name, f"the name of a config of topic {topic}")
    if value:
        check_text(value, f"the config {name} of topic {topic}")
    elif value != "":
        raise InvalidTextError(f"the config {name} of topic {topic} has no value", hint="give one")


def _check_letters(text: str, what: str, *, controls: bool) -> None:
    for place, letter in enumerate(text):
        code = ord(letter)
        is_control = code < ord(" ") or _DELETE <= code < _CONTROLS_END
        if code == 0 or (is_control and not controls):
            raise InvalidTextError(
                f"{what} holds the control character {letter!r} at place {place}",
                hint="take the character away",
            )
        if "\ud800" <= letter <= "\udfff":
            raise InvalidTextError(
                f"{what} holds half of a character, {letter!r}, at place {place}",
                detail="it comes from bytes that are not UTF-8",
                hint="give a text that can be encoded: text.encode()",
            )


def _check_size(text: str, what: str, most: int) -> None:
    size = len(text.encode())
    if size > most:
        raise InvalidTextError(
            f"{what} has {size} bytes; the most is {most}", hint="give a shorter text"
        )
