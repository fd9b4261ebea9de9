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

NO_CLIENT = b""
"""The key of nobody: no client has attached a member yet, or the client is not known."""


def wrong_client_id(client_id: bytes) -> str:
    """What is wrong with the id of a client, for its developer; "" if nothing is."""
    size = len(client_id)
    if size == CLIENT_ID_BYTES:
        return ""
    return f"a client id of {size} bytes; a client draws {CLIENT_ID_BYTES} random bytes as its id"


@lru_cache(maxsize=4096)
def client_key(client_id: bytes) -> bytes:
    """The first 16 bytes of SHA-256 of the id; cached, since a client sends many requests."""
    return hashlib.sha256(client_id).digest()[:CLIENT_KEY_BYTES]


def shown_client(name: str, key: bytes) -> str:
    """A client as lists and logs show the client: name and key, or "" if unknown."""
    return f"{name}:{key.hex()}" if key else ""
