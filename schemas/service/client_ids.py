"""Ids of clients, and the hash by which everybody may know a client.

*Source*: docs/protocols C15. An id is a secret of its client and the workers: who knows the id may
ask in the client's name. Answers, lists, logs and metrics show the client's key instead.
"""

import hashlib
import secrets
from functools import lru_cache

CLIENT_ID_BYTES = 16

CLIENT_KEY_BYTES = 16

CLIENT_NAME_CHARS_MAX = 100
"""Longest name of a client in a request; clients cut longer names."""

NO_CLIENT = b""
"""The key of nobody: a transaction that a version without keys has opened."""


def new_client_id() -> bytes:
    """An id that nobody can guess."""
    return secrets.token_bytes(CLIENT_ID_BYTES)


def is_client_id(client_id: bytes) -> bool:
    """Whether this version makes such ids; earlier ones put the client's name in front."""
    return len(client_id) == CLIENT_ID_BYTES


@lru_cache(maxsize=4096)
def client_key(client_id: bytes) -> bytes:
    """The first 16 bytes of SHA-256 of the id; cached, since a client sends many requests."""
    return hashlib.sha256(client_id).digest()[:CLIENT_KEY_BYTES]


def reply_key(client_id: bytes) -> bytes:
    """The record key of answers to a client; clients of earlier versions look for their id."""
    return client_key(client_id) if is_client_id(client_id) else client_id


def shown_client(name: str, key: bytes) -> str:
    """A client as lists and logs show the client: name and key, or "" if unknown."""
    return f"{name}:{key.hex()}" if key else ""
