"""Databases that decide prepared transactions, by name: the setting `deciders`.

*Source*: docs/protocols L6. *Invariants*: no error shows an address, which may hold a password.
"""

from stilltide.connectors.errors import InvalidTextError
from stilltide.connectors.names import check_name
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.decisions import DECIDER_NAME_CHARS_MAX

_EXAMPLE = "orders-db=postgresql://user:password@host/orders"


def parse_deciders(text: str) -> dict[str, str]:
    """Addresses of databases by name, from `name=URL` separated by spaces.

    Raises:
        ConfigError: an entry has another form, or a name is not valid or comes twice.
    """
    addresses: dict[str, str] = {}
    for number, entry in enumerate(text.split(), 1):
        name, given, address = entry.partition("=")
        if not given or "://" not in address:
            raise ConfigError(f"entry {number} of deciders is not name=URL", hint=_EXAMPLE)
        try:
            check_decider_name(name, "a name in deciders")
        except InvalidTextError as error:
            raise ConfigError(error.primary, detail=error.detail, hint=_EXAMPLE) from error
        if name in addresses:
            raise ConfigError(f"two deciders are named {name!r}", hint="name each database once")
        addresses[name] = address
    return addresses


def check_decider_name(name: object, what: str) -> None:
    """Passes a name of a database that decides.

    Raises:
        InvalidTextError: the text is no name, is too long, or holds `/`, which ends a name.
    """
    check_name(name, what)
    if "/" in str(name) or len(str(name)) > DECIDER_NAME_CHARS_MAX:
        raise InvalidTextError(
            f"{what} is {str(name)[:DECIDER_NAME_CHARS_MAX]!r}, which is no name of a decider",
            hint=f"give a name of at most {DECIDER_NAME_CHARS_MAX} characters without `/`, such as "
            "orders-db",
        )
