"""What a worker tells the clients of an owner that has ended by an error.

*Source*: docs/protocols B8. A notice is no answer: it does not say whether a request took effect.
"""

from typing import NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.service.client_ids import client_key
from stilltide.schemas.v1 import requests_pb2 as pb

_KEY = b"ended:"
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
    return _KEY + client_key(client_id)


def encode_notice(notice: OwnerEnded) -> bytes:
    """The value of a record of txn-responses."""
    return pb.OwnerEnded(owner=notice.owner, why=notice.why, hint=notice.hint).SerializeToString()


def decode_notice(value: bytes | None) -> OwnerEnded:
    """A notice; raises `DecodeError` for other bytes."""
    try:
        message = pb.OwnerEnded.FromString(value or b"")
    except ProtobufDecodeError as error:
        raise DecodeError("not a notice of an ended owner", detail=str(error)) from error
    return OwnerEnded(message.owner, message.why, message.hint)
