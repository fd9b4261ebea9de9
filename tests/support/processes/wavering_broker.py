"""A listener that answers the requests with which Kafka clients look for brokers.

While the listener wavers, it lists no brokers, or closes the connection, as a single broker may do
that starts or was frozen, but more often. The listener gives producer ids and holds no records: it
closes the connection at any other request.
"""

import asyncio
import random
import struct
from collections.abc import Collection
from contextlib import closing, suppress
from typing import Any, Self

from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

TOPIC = "wavering"
_METADATA_VERSION = 9
_LEADER_NOT_AVAILABLE = 5

_CLOSES = 0.1
_LISTS = 0.5
"""How often, of requests for metadata while it wavers."""


class WaveringBroker:
    """Serves from entry to exit, on the event loop of its caller.

    Attributes:
        wavers: whether the listener wavers now.
        leads: whether its partition has a leader.
        heard: client ids that have asked for metadata; the caller may clear it.
    """

    def __init__(self, seed: int) -> None:
        self.wavers = False
        self.leads = True
        self.heard: set[str] = set()
        self._heard_more = asyncio.Event()
        self._requests = 0
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None

    @property
    def bootstrap(self) -> str:
        """The listener's address."""
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def heard_of(self, client_ids: Collection[str], timeout_s: float) -> None:
        """Returns when each of these has asked for metadata since now."""
        self.heard.clear()
        async with asyncio.timeout(timeout_s):
            while set(client_ids) - self.heard:
                self._heard_more.clear()
                await self._heard_more.wait()

    async def asked(self, count: int, timeout_s: float) -> None:
        """Returns when it has been asked for metadata so many times more."""
        until = self._requests + count
        async with asyncio.timeout(timeout_s):
            while self._requests < until:
                self._heard_more.clear()
                await self._heard_more.wait()

    async def _serve(self, asked: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        # The other side may close whenever it likes.
        with closing(answers), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", await asked.readexactly(4))
                answer = self._answer(await asked.readexactly(size))
                if answer is None:
                    break
                answers.write(answer)
                await answers.drain()

    def _answer(self, request: bytes) -> bytes | None:
        """Of a request as it came; none closes the connection."""
        key, version, correlation_id, name_size = struct.unpack(">hhih", request[:10])
        answer: Any
        if key == ApiVersionsRequest.API_KEY:
            # What it speaks; a client that speaks a later version of this request tries again.
            known = 0 if version == 0 else _UNSUPPORTED_VERSION
            answer = ApiVersionsResponse(version=0, error_code=known, api_keys=_API_KEYS)
        elif key == MetadataRequest.API_KEY:
            self.heard.add(request[10 : 10 + name_size].decode())
            self._requests += 1
            self._heard_more.set()
            if self.wavers and self._random.random() < _CLOSES:
                return None
            answer = self._metadata(lists_brokers=not self.wavers or self._random.random() < _LISTS)
        elif key == InitProducerIdRequest.API_KEY:
            answer = InitProducerIdResponse(
                version=version, throttle_time_ms=0, error_code=0, producer_id=1, producer_epoch=0
            )
        else:
            return None
        answer.with_header(correlation_id=correlation_id)
        return bytes(answer.encode(header=True, framed=True))

    def _metadata(self, *, lists_brokers: bool) -> MetadataResponse:
        broker = MetadataResponse.MetadataResponseBroker(
            node_id=1, host="127.0.0.1", port=self._port, rack=None
        )
        leads = lists_brokers and self.leads
        topic = MetadataResponse.MetadataResponseTopic
        partition = topic.MetadataResponsePartition(
            error_code=0 if leads else _LEADER_NOT_AVAILABLE,
            partition_index=0,
            leader_id=1 if leads else -1,
            leader_epoch=0,
            replica_nodes=[1],
            isr_nodes=[1],
            offline_replicas=[],
        )
        return MetadataResponse(
            version=_METADATA_VERSION,
            brokers=[broker] if lists_brokers else [],
            cluster_id="wavering",
            controller_id=1 if lists_brokers else -1,
            topics=[topic(error_code=0, name=TOPIC, is_internal=False, partitions=[partition])],
        )


_UNSUPPORTED_VERSION = 35
_API_KEYS = [
    ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
    for key, low, high in (
        (1, 4, 11),
        (2, 1, 5),
        (MetadataRequest.API_KEY, _METADATA_VERSION, _METADATA_VERSION),
        (ApiVersionsRequest.API_KEY, 0, 0),
        (InitProducerIdRequest.API_KEY, 0, 1),
    )
]
