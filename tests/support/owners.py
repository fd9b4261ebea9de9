"""Owners in a `Runtime` of their own, as a worker runs them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from stilltide.connectors.chance import SystemChance
from stilltide.pipeline.drivers.worker.placement import INDEXERS
from stilltide.pipeline.drivers.worker.runtime import Owner, Runtime
from stilltide.schemas.retry import OWNER_ENDED, Retry

O = TypeVar("O", bound=Owner)  # noqa: E741 - the letter of what it stands for


@asynccontextmanager
async def tenure(owner: O, retry: Retry = OWNER_ENDED) -> AsyncIterator[Runtime[int, O]]:
    """Runs one owner, to which partition 0 is assigned, for the length of the block."""
    runtime: Runtime[int, O] = Runtime(
        INDEXERS, lambda _: owner, chance=SystemChance(), retry=retry
    )
    await runtime.assign([0])
    try:
        yield runtime
    finally:
        await runtime.stop()
