"""Ids of clients and names of workers, and what a worker tells the clients of an ended owner.

*Source*: docs/protocols B8, C10, C15; docs/operating.md, Status. An id is a secret of its client
and the workers: who knows the id may ask in the client's name. Answers, lists, logs and metrics
show the client's key instead, a hash by which everybody may know the client. The name under which a
worker is a member of the workers' group says the worker's version. A notice of an ended owner is no
answer: it does not say whether a request took effect.
"""

import hashlib
from functools import lru_cache
from typing import NamedTuple

from stilltide.schemas.messages import Fields
from stilltide.schemas.v1 import requests_pb2 as pb

CLIENT_ID_BYTES = 16

CLIENT_KEY_BYTES = 16

CLIENT_NAME_CHARS_MAX = 100
"""Longest name of a client in a request; clients cut longer names."""

NO_CLIENT = b""
"""The key of nobody: no client has attached a member yet, or the client is not known."""


def wrong_client_id(client_id: bytes) -> str:
    """What is wrong with the id of a client, for its developer; "" if nothing is (C15)."""
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


_WORKER_PREFIX = "stilltide-worker-"


def worker_client_id(version: str) -> str:
    """The client id of a worker of this version of Stilltide."""
    return _WORKER_PREFIX + version


def worker_version(client_id: str) -> str | None:
    """The version in a client id; None: the member is no worker."""
    version = client_id.removeprefix(_WORKER_PREFIX)
    return version if version != client_id and version else None


_NOTICE_KEY_PREFIX = b"ended:"
"""Clients of version 0.2.0 look for other keys."""


class OwnerEnded(NamedTuple):
    """The owner has ended, and serves nobody until it is tried again.

    Attributes:
        owner: its partition of the topic of requests.
        why: place and cause, for people.
        hint: the next step, for people; may be empty.
    """

    owner: int
    why: str
    hint: str


def notice_key(client_id: bytes) -> bytes:
    """The record key of notices to a client."""
    return _NOTICE_KEY_PREFIX + client_key(client_id)


_NOTICE = Fields(OwnerEnded, pb.OwnerEnded, "a notice of an ended owner")
encode_notice = _NOTICE.encode
"""The value of a record of txn-responses."""


def decode_notice(value: bytes | None) -> OwnerEnded:
    """A notice; raises `DecodeError` for other bytes."""
    return _NOTICE.decode(value or b"")
