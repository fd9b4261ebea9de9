"""The pending-ack stores, as owners that are asked (G).

A program that only writes does not load what encodes acknowledgements.
"""

from dataclasses import replace

from stilltide.pipeline.drivers.service.requests import CHECK_WORKER, Requests, Service
from stilltide.schemas import topics
from stilltide.schemas.pending_ack import codec
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckQuestion,
    AckRequest,
    DescribeAcks,
    DescribeStore,
    ack_request,
)

PENDING_ACK_SERVICE: Service[AckQuestion, AckRequest, AckAnswer] = Service(
    topics.ACK_REQUESTS,
    "pending-ack owner",
    ack_request,
    codec.encode_request,
    codec.decode_response,
    silent_check=CHECK_WORKER,
)
PENDING_ACK_OPERATOR_SERVICE = replace(
    PENDING_ACK_SERVICE,
    topic=topics.OPERATOR_ACK_REQUESTS,
    for_operators=True,
    silent_check=None,
    looks=lambda question: isinstance(question.body, DescribeStore | DescribeAcks),
)
"""The pending-ack stores, asked by operators, and told of outcomes by coordinators."""
AckRequests = Requests[AckQuestion, AckRequest, AckAnswer]
