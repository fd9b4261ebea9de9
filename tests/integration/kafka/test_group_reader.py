"""A group's reader that is closed while its first assignment is on its way to the loop."""

import asyncio
import threading
from collections.abc import Callable, Mapping

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition

WAIT_S = 180


async def test_a_closed_reader_calls_nobody(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
):
    """`assigned` is not called after `close`, even if the thread has posted the call before."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    await admin.close()

    loop, posted = asyncio.get_running_loop(), threading.Event()
    post = loop.call_soon_threadsafe

    def watched(call: Callable[..., None], *args: object) -> object:
        handle = post(call, *args)
        data = TopicPartition(topic_name, 0)
        if any(isinstance(it, Mapping) and data in it for it in args):
            posted.set()
        return handle

    calls: list[object] = []
    reader = connector.group_reader("m", topic_name)
    await reader.subscribe([topic_name], assigned=calls.append, revoked=calls.append)
    monkeypatch.setattr(loop, "call_soon_threadsafe", watched)
    assert posted.wait(WAIT_S)  # on the loop, so that the call cannot run yet
    await reader.close()
    assert calls == []
