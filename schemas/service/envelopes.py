"""What carries a request and its answer, with ids of clients, refusals and notices.

*Source*: docs/protocols B8, C1b, C10, C15; docs/operating.md, Status. An id is a secret of its
client and the workers: who knows the id may ask in the client's name. Answers, lists, logs and
metrics show the client's key instead, a hash by which everybody may know the client. The name under
which a worker is a member of the workers' group says the worker's version. A notice of an ended
owner is no answer: it does not say whether a request took effect.

Each topic of requests has messages of its own in protobuf, whose codecs are in the folders of the
services; the values that carry what these codecs read are the same.
"""

import hashlib
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from stilltide.schemas.errors import DecodeError
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


B = TypeVar("B")
Body_co = TypeVar("Body_co", covariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


class Request(NamedTuple, Generic[Body_co]):
    """One request of one client to the owner of a partition of a topic of requests.

    Attributes:
        client_id: the client's secret (C15).
        number: the client's numbers ascend in each partition of the topic.
        acked_through: the client has the answers of every request up to this number (C1b); 0 where
            owners remember no answers.
        reply_partition: partition of txn-responses that the client reads.
        body: what is asked.
    """

    client_id: bytes
    number: int
    acked_through: int
    reply_partition: int
    body: Body_co


class Response(NamedTuple, Generic[Answer_co]):
    """One answer to one request; `owner` is the partition of the topic of requests."""

    number: int
    owner: int
    answer: Answer_co


class RefusalCode(Enum):
    """Why a request was refused, for programs.

    Each topic of requests has its own codes in protobuf, and knows some of these; what it does not
    know is ILLEGAL.

    Attributes:
        ILLEGAL: the state does not allow the request; also what an owner says without a code.
        NOT_OWNER: the transaction belongs to another client (C11).
        MALFORMED: a value of the request is out of its bounds (C10).
        UNSUPPORTED: the owner does not know this kind of request, or this form of client (C10).
        LIMIT: the client, or the owner, is at one of its bounds (C16).
        OPERATORS_ONLY: only operators may ask for this (C15).
        COMPACTED: a topic of the registration compacts (C18).
        PREPARED: the transaction is prepared; its token, or an operator, ends it (L1).
        COMMITTED: the transaction is decided to commit, or has committed (L3).
        ABORTED: the transaction is decided to abort, or has aborted (L3).
        ALREADY_ACKNOWLEDGED: a message is acknowledged already (G2).
        PENDING_IN_ANOTHER_TRANSACTION: another transaction has acknowledged a message (G2).
        TRANSACTION_ENDED: the transaction of an acknowledgement has ended (G1).
        NOT_ATTACHED: another member holds the group partition, or none does.
        TOO_MANY: there would be too many acknowledgements or group partitions.
        NOT_IN_GROUP: the group's coordinator does not know the member (C15).
    """

    ILLEGAL = "ILLEGAL"
    NOT_OWNER = "NOT_OWNER"
    MALFORMED = "MALFORMED"
    UNSUPPORTED = "UNSUPPORTED"
    LIMIT = "LIMIT"
    OPERATORS_ONLY = "OPERATORS_ONLY"
    COMPACTED = "COMPACTED"
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
    ALREADY_ACKNOWLEDGED = "ALREADY_ACKNOWLEDGED"
    PENDING_IN_ANOTHER_TRANSACTION = "PENDING_IN_ANOTHER_TRANSACTION"
    TRANSACTION_ENDED = "TRANSACTION_ENDED"
    NOT_ATTACHED = "NOT_ATTACHED"
    TOO_MANY = "TOO_MANY"
    NOT_IN_GROUP = "NOT_IN_GROUP"


class Refused(NamedTuple):
    """Answer: the request is refused and changed nothing."""

    reason: str
    code: RefusalCode = RefusalCode.ILLEGAL


def codes_of(names: Iterable[tuple[str, int]]) -> dict[int, RefusalCode]:
    """The codes by number; `names` are an enumeration of protobuf, whose 0 says nothing."""
    codes = RefusalCode.__members__
    return {
        number: codes.get(name.partition("REFUSAL_CODE_")[2], RefusalCode.ILLEGAL)
        for name, number in names
    }


class Done(NamedTuple):
    """Answer: the request took effect."""


class Unreadable(NamedTuple):
    """The body of a request whose client and number are known, and which is refused (C10).

    A body of this kind is never encoded and never logged.
    """

    refusal: Refused


UNKNOWN_ANSWER = Refused(
    "the answer is of a kind that this program does not know: upgrade the client",
    RefusalCode.UNSUPPORTED,
)
"""Stands for an answer of a later version: one request fails, not its client (C10)."""


def check_asker(message: Any, what: str) -> None:
    """Raises `DecodeError` if a message has no client id or number: nobody can be answered."""
    if not message.client_id or not message.number:
        raise DecodeError(f"{what} without client id or number")


def check_numbered(message: Any) -> None:
    """Raises `DecodeError` if a message does not name a request."""
    if not message.number:
        raise DecodeError("an answer without a request's number")


def arrived(message: Any, body_of: Callable[[Any], B], owner: str = "") -> B | Unreadable:
    """The body of a client's request; one that cannot be read is `Unreadable` (C10).

    Args:
        message: the request.
        body_of: reads the body; raises `DecodeError`.
        owner: who is asked; empty: the message has no kinds of body.
    """
    if wrong := wrong_client_id(message.client_id):
        return Unreadable(Refused(wrong, RefusalCode.MALFORMED))
    if owner and message.WhichOneof("body") is None:
        reason = f"this {owner} does not know the request: upgrade the workers"
        return Unreadable(Refused(reason, RefusalCode.UNSUPPORTED))
    try:
        return body_of(message)
    except DecodeError as error:
        return Unreadable(Refused(error.primary, RefusalCode.MALFORMED))


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
