"""Frames and proofs of direct lines between clients and workers.

*Source*: docs/protocols J. A frame is its length in four bytes, big-endian, then so many bytes. A
client may send an empty frame, which the worker answers with an empty frame.

The client's first frame is the worker's nonce and the client's proof, the worker's first frame is
the worker's proof. Each later frame has the value that a record of the requests topic, or of
txn-responses, would have.
"""

import hashlib
import hmac

NONCE_BYTES = 16
PROOF_BYTES = hashlib.sha256().digest_size

FRAME_BYTES_MAX = 1024 * 1024
"""Longest frame (J4); what is longer goes by topic."""

PING = bytes(4)
"""An empty frame."""

CLIENT, WORKER = b"client", b"worker"
"""The sides of a line; a proof of one side does not pass for one of the other."""


def proof_of(side: bytes, client_id: bytes, client_nonce: bytes, worker_nonce: bytes) -> bytes:
    """What only those can make who know the client's id (C15, J2).

    Args:
        side: `CLIENT` or `WORKER`.
        client_id: id of the client, the shared secret.
        client_nonce: nonce in the client's `Hello`.
        worker_nonce: nonce in the worker's `Greeting`.
    """
    return hmac.digest(client_id, side + client_nonce + worker_nonce, "sha256")


def same(proof: bytes, other: bytes) -> bool:
    """Whether two proofs are equal; the time that it takes does not depend on them."""
    return hmac.compare_digest(proof, other)


def framed(value: bytes) -> bytes:
    """The frame of a value."""
    return len(value).to_bytes(4, "big") + value
