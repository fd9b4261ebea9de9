"""Whether anything listens at the addresses of a cluster, asked before the first client is made.

*Source*: docs/internals/kafka-clients.md. A client of Kafka goes on connecting to a wrong address
until a call times out, and does not say why.

*Invariants*: one broker that listens is enough. Once one has listened, nothing is asked again: a
cluster that is away later is waited for (B9).
"""

import asyncio
import os
import socket
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from stilltide.connectors.errors import NoBrokerError
from stilltide.connectors.names import split_servers
from stilltide.schemas.retry import OUTAGE

ANSWER_S = 4.0
"""Longest time for a connection: a first packet that was lost is sent again after 1 s and 3 s."""

REFUSED_S = 1.0
"""Time in which an address that refuses is tried again: a broker may be starting."""

_SHOWN = 3
"""Addresses of which an error names the reason."""


class Contact:
    """The first contact of all clients of a cluster in this process, which share it.

    Attributes:
        made: whether a broker has listened.
    """

    def __init__(self) -> None:
        self.made = False

    def __reduce__(self) -> tuple[type["Contact"], tuple[()]]:
        """Another process asks by itself: configs travel to the executors of Spark."""
        return Contact, ()

    async def make(self, servers: str, timeout_s: float) -> None:
        """Returns once a broker has listened at one of these addresses.

        Args:
            servers: addresses `host:port`, separated by commas.
            timeout_s: longest wait, > 0; at most `ANSWER_S` is waited.

        Raises:
            NoBrokerError: none listens.
        """
        if self.made:
            return
        addresses = split_servers(servers)
        reasons = dict.fromkeys(addresses, "no connection in time")
        try:
            async with asyncio.timeout(min(timeout_s, ANSWER_S)):
                self.made = await _any([_listens(server, reasons) for server in addresses])
        except TimeoutError:
            """The reasons say which address did not answer."""
        if not self.made:
            raise _no_broker(servers, reasons)


def _no_broker(servers: str, reasons: dict[str, str]) -> NoBrokerError:
    shown = [f"{server}: {reason}" for server, reason in list(reasons.items())[:_SHOWN]]
    more = len(reasons) - _SHOWN
    return NoBrokerError(
        f"no broker answers at {servers}",
        detail="; ".join([*shown, f"{more} more"] if more > 0 else shown),
        hint="correct the address, or start the broker",
    )


async def _any(attempts: Sequence[Coroutine[Any, Any, bool]]) -> bool:
    """Whether one of them has succeeded; ends the others."""
    tasks = [asyncio.create_task(attempt) for attempt in attempts]
    try:
        for done in asyncio.as_completed(tasks):
            if await done:
                return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _listens(server: str, reasons: dict[str, str]) -> bool:
    """Whether a connection to an address can be made; else the reason is noted."""
    host, _, port = server.rpartition(":")
    now = asyncio.get_running_loop().time
    until_s = now() + REFUSED_S
    while True:
        try:
            numbers = await _resolved(host.strip("[]"), int(port))
            if await _any([_connects(number, int(port), server, reasons) for number in numbers]):
                return True
        except OSError as error:
            reasons[server] = error.strerror or str(error)
        if now() > until_s:
            return False
        await asyncio.sleep(OUTAGE.wait_s())


async def _connects(number: str, port: int, server: str, reasons: dict[str, str]) -> bool:
    try:
        _, writer = await asyncio.open_connection(number, port)
    except OSError as error:
        reasons[server] = _reason(error)
        return False
    writer.close()
    return True


def _reason(error: OSError) -> str:
    """The system's words, without those that asyncio puts around them."""
    return os.strerror(error.errno) if error.errno else str(error)


async def _resolved(host: str, port: int) -> list[str]:
    """The numeric addresses of a host.

    A resolver without a server waits for longer than anybody here, and cannot be cancelled. Its
    thread is a daemon, for which the end of the process does not wait.
    """
    loop = asyncio.get_running_loop()
    numbers: asyncio.Future[list[str]] = loop.create_future()

    def resolved(addresses: list[str] | None, error: OSError | None) -> None:
        if numbers.done():
            return
        if error is not None:
            numbers.set_exception(error)
        else:
            numbers.set_result(addresses or [])

    def resolve() -> None:
        addresses: list[str] | None = None
        failure: OSError | None = None
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
        except (OSError, UnicodeError) as error:
            failure = error if isinstance(error, OSError) else OSError(str(error))
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(resolved, addresses, failure)

    threading.Thread(target=resolve, name="stilltide-resolver", daemon=True).start()
    return await numbers
