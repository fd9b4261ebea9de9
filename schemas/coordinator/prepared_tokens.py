"""The token of a prepared transaction: the right to decide how the transaction ends.

*Source*: docs/protocols L2. The text is `stp_` and base64 (of URLs, without padding) of: a version
(1 byte), the transaction (16 bytes), the secret (32 random bytes), Kafka's id of the topic of
requests (16 bytes), the id of its Kafka cluster (UTF-8), and the CRC-32 of all that (4 bytes).
Coordinators and resolvers know only the SHA-256 of the secret.

*Invariants*: a token that was cut short or altered is told from a token of another transaction, and
a token of before the topics of Stilltide were made again from those of now; no `repr` shows a
secret.
"""

import binascii
import hashlib
import re
import struct
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from stilltide.schemas.errors import PreparedTokenError, UnknownVersionError
from stilltide.schemas.values import SEQUENCE_MAX, TOPIC_ID_BYTES, TXN_ID_BYTES, TxnId

SECRET_BYTES = 32
"""Bytes of a secret, and of its SHA-256."""

TOKEN_CHARS_MAX = 512
"""Longest text that is read as a token; Kafka's ids of clusters have 22 characters."""

_PREFIX = "stp_"
_VERSION = 1
_HEAD = struct.Struct(f">B{TXN_ID_BYTES}s{SECRET_BYTES}s{TOPIC_ID_BYTES}s")
_CRC = struct.Struct(">I")
_HASH_BYTES_SHOWN = 8
_DIGITS = re.compile(r"[0-9]{1,20}").fullmatch
_WHOLE = "take the whole text that `prepare` has returned"


class PreparedToken(NamedTuple):
    """What a token says.

    Attributes:
        cluster_id: id of the Kafka cluster, as its brokers say it.
        txn: the prepared transaction.
        secret: 32 random bytes.
        topic_id: Kafka's id of the topic of requests: coordinators of topics that were made again
            count from 0 again.
    """

    cluster_id: str
    txn: TxnId
    secret: bytes
    topic_id: bytes

    @property
    def secret_hash(self) -> bytes:
        """What the coordinator knows of the secret (L2)."""
        return hash_of(self.secret)

    @property
    def id(self) -> str:
        """Name of the prepared transaction, which is no secret; see `token_id`."""
        return token_id(self.cluster_id, self.txn, self.secret_hash)

    def check(self, cluster_id: str, topic_id: bytes) -> None:
        """Passes if the token is of these topics of this cluster.

        Raises:
            PreparedTokenError: it is of another cluster, or of topics of before.
        """
        if self.cluster_id != cluster_id:
            raise PreparedTokenError(
                f"the token is of the cluster {self.cluster_id}, not of this client's",
                detail=f"this client uses the cluster {cluster_id}",
                hint="resume it with a client of its cluster",
            )
        if self.topic_id != topic_id:
            raise PreparedTokenError(
                f"the token of {self.txn} is older than the topics of Stilltide",
                detail="they were deleted and made again, and transactions are counted from 0 "
                "again; nothing was decided",
                hint="its transaction is gone with the topics of before: do its work again, or "
                "undo it",
            )

    def __repr__(self) -> str:
        """Without the secret."""
        return f"PreparedToken({self.id!r})"


def hash_of(secret: bytes) -> bytes:
    """The SHA-256 of a secret."""
    return hashlib.sha256(secret).digest()


def token_id(cluster_id: str, txn: TxnId, secret_hash: bytes) -> str:
    """The name of a prepared transaction that no other one ever has, in any cluster.

    The secret's hash is part of the name: where the topics of Stilltide are made again, the
    coordinators count from 0 again, and a name of before must not decide a transaction of now.
    """
    return f"{cluster_id}/{txn}/{secret_hash[:_HASH_BYTES_SHOWN].hex()}"


def txn_named(name: str) -> TxnId | None:
    """The transaction of a `token_id`; None: the text is no such name."""
    _, _, rest = name.partition("/")
    numbers = rest.partition("/")[0].split(":")
    if len(numbers) != 2 or not all(map(_DIGITS, numbers)):  # noqa: PLR2004
        return None
    return TxnId(*map(int, numbers))


def encode_token(token: PreparedToken) -> str:
    """The text of a token."""
    head = _HEAD.pack(_VERSION, token.txn.to_bytes(), token.secret, token.topic_id)
    body = head + token.cluster_id.encode()
    data = body + _CRC.pack(zlib.crc32(body))
    return _PREFIX + _text_of(data)


def decode_token(text: str) -> PreparedToken:
    """The token of a text; white space around it is passed over.

    Raises:
        PreparedTokenError: the text is no token, or one that was cut short or altered.
        UnknownVersionError: a later version made the token.
    """
    data = _bytes_of(text)
    if len(data) < _HEAD.size + _CRC.size:
        raise PreparedTokenError("the token of a prepared transaction is cut short", hint=_WHOLE)
    body, (crc,) = data[: -_CRC.size], _CRC.unpack(data[-_CRC.size :])
    if zlib.crc32(body) != crc:
        raise PreparedTokenError(
            "the token of a prepared transaction is cut short or altered", hint=_WHOLE
        )
    version, txn, secret, topic_id = _HEAD.unpack_from(body)
    if version != _VERSION:
        raise UnknownVersionError(
            f"the token of a prepared transaction has version {version}",
            detail=f"this program reads version {_VERSION}",
            hint="a newer Stilltide made it: upgrade this one",
        )
    try:
        cluster_id = body[_HEAD.size :].decode()
    except UnicodeDecodeError as error:
        raise PreparedTokenError("a token without the id of a cluster", hint=_WHOLE) from error
    token = PreparedToken(cluster_id, TxnId.from_bytes(txn), secret, topic_id)
    if not cluster_id or token.txn.sequence > SEQUENCE_MAX:
        raise PreparedTokenError("a token that names no cluster or transaction", hint=_WHOLE)
    return token


def _text_of(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes_of(text: str) -> bytes:
    text = text.strip()
    if not text.startswith(_PREFIX) or len(text) > TOKEN_CHARS_MAX:
        raise PreparedTokenError("a text that is no token of a prepared transaction", hint=_WHOLE)
    encoded = text.removeprefix(_PREFIX)
    try:
        data = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (binascii.Error, ValueError) as error:
        raise PreparedTokenError(
            "the token of a prepared transaction is cut short or altered", hint=_WHOLE
        ) from error
    if _text_of(data) != encoded:  # characters that are no base64 are passed over in decoding
        raise PreparedTokenError("the token of a prepared transaction is altered", hint=_WHOLE)
    return data
