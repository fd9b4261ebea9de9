"""Ids of clients, and the hash by which everybody may know a client.

*Source*: docs/protocols C15. An id is a secret of its client and the workers: who knows the id may
ask in the client's name. Answers, lists, logs and metrics show the client's key instead.
"""

import hashlib
from functools import lru_cache

CLIENT_ID_BYTES = 16

CLIENT_KEY_BYTES = 16

CLIENT_NAME_CHARS_MAX = 100
"""Longest name of a client in a request; clients cut longer names."""

_OLDER_NAME_BYTES_MAX = 4 * CLIENT_NAME_CHARS_MAX

NO_CLIENT = b""
"""The key of nobody: a transaction that a version without keys has opened."""


def is_client_id(client_id: bytes) -> bool:
    """Whether this version makes such ids."""
    return len(client_id) == CLIENT_ID_BYTES


def is_older_client_id(client_id: bytes) -> bool:
    """Whether clients before C15 made such ids: the client's name, and 16 bytes behind the name."""
    name = client_id[:-CLIENT_ID_BYTES]
    if not 0 < len(name) <= _OLDER_NAME_BYTES_MAX:
        return False
    try:
        return name.decode().isprintable()
    except UnicodeDecodeError:
        return False


def wrong_client_id(client_id: bytes) -> str:
    """What is wrong with the id of a client, for its developer; "" if nothing is."""
    if is_client_id(client_id):
        return ""
    if is_older_client_id(client_id):
        return "the client is of an older version than the workers: upgrade the client"
    size = len(client_id)
    return f"a client id of {size} bytes; a client draws {CLIENT_ID_BYTES} random bytes as its id"


@lru_cache(maxsize=4096)
def client_key(client_id: bytes) -> bytes:
    """The first 16 bytes of SHA-256 of the id; cached, since a client sends many requests."""
    return hashlib.sha256(client_id).digest()[:CLIENT_KEY_BYTES]


def reply_key(client_id: bytes) -> bytes:
    """The record key of answers to a client; clients of earlier versions look for their id."""
    return client_id if is_older_client_id(client_id) else client_key(client_id)


def shown_client(name: str, key: bytes) -> str:
    """A client as lists and logs show the client: name and key, or "" if unknown."""
    return f"{name}:{key.hex()}" if key else ""
