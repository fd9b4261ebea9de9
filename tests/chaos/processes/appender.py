"""One owner of a log under fault: appends without end; stdout names each acknowledged position.

`python -m tests.chaos.processes.appender BOOTSTRAP TOPIC NAME`. A line says
`payload offset size index`. The process ends by itself when it is fenced.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from stilltide.connectors.errors import FencedError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.agents.apps import BufferedWriter, writer_app
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.pipeline.logging import configure_logging
from stilltide.schemas.values import TopicPartition
from tests.support.buffered_log.appending import append_and_wait
from tests.support.buffered_log.owner import BYTES, Listener

CALLERS = 64


async def run(bootstrap: str, topic: str, name: str) -> None:
    """Takes the log by a fence and appends until another owner takes it."""
    connector = KafkaConnector(KafkaConfig(bootstrap_servers=bootstrap))
    with tempfile.TemporaryDirectory() as directory:
        app = writer_app(load_settings(), Path(directory))
        agent = BufferedWriter(app)
        app.finalize()
        await app.start()
        pump = asyncio.create_task(agent.run())
        writer = connector.writer(name)
        listener = Listener()
        log = OwnedLog(
            connector,
            TopicPartition(topic, 0),
            BYTES,
            BatchLimits(),
            writer=writer,
            entries=agent,
            listener=listener,
        )
        owning = asyncio.create_task(log.run())
        await listener.serving.wait()
        say("serving")
        numbers = iter(range(10**9))
        callers = [asyncio.create_task(append(log, name, numbers)) for _ in range(CALLERS)]
        await asyncio.gather(owning, *callers, return_exceptions=True)
        pump.cancel()
        await app.stop()
        await writer.close()


async def append(log: OwnedLog, name: str, numbers: "object") -> None:
    """Payload after payload, each acknowledged before the next."""
    for number in numbers:  # type: ignore[attr-defined]
        payload = f"z-{name}-{number}"  # `z` begins no batch
        try:
            partition, offset, size, index = await append_and_wait(log, payload.encode())
        except RetriableError:
            continue
        except FencedError:
            return
        assert partition == 0
        say(f"{payload} {offset} {size} {index}")


def say(line: str) -> None:
    """One line, at once: what was said before a SIGKILL is known."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    configure_logging()
    asyncio.run(run(*sys.argv[1:]))
