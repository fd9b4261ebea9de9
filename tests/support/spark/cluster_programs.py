"""Programs in the driver's namespace of a Spark cluster, and a broker that the namespaces reach."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from stilltide.connectors.local.addresses import Listener, free_port
from stilltide.connectors.local.cluster import LocalCluster
from tests.support.native.topics import index_topics
from tests.support.spark.cluster import SparkCluster, environment
from tests.support.spark.sound_topics import write_sound

TOPIC = "orders"
PROGRAM_S = 600


class Written(NamedTuple):
    """A topic, the broker's address for this machine and for the namespaces, and the records."""

    near: str
    far: str
    visible: int


@contextmanager
def sound_topic(cluster: SparkCluster, path: Path) -> Iterator[Written]:
    """A broker that also listens where the namespaces reach it, with transactions of both kinds."""
    listener = Listener("BRIDGE", "PLAINTEXT", free_port(), host=cluster.network.host)
    with LocalCluster("a", path, fast_start=True, listeners=[listener]) as found:
        held = write_sound(found.bootstrap, TOPIC, 7)
        asyncio.run(index_topics(found.bootstrap, TOPIC))
        visible = sum(one["visible"] for one in held)
        yield Written(found.bootstrap, listener.bootstrap, visible)


def drive(cluster: SparkCluster, *command: str) -> str:
    """What a program in the driver's namespace prints; its log is in the failure."""
    done = subprocess.run(
        cluster.network.command("driver", *command),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def driver_settings(cluster: SparkCluster) -> list[str]:
    """The options of a driver in its namespace: small executors that find the driver."""
    address = cluster.network.addresses["driver"]
    named = {"spark.driver.host": address, "spark.executor.memory": "600m"}
    return [part for name, value in named.items() for part in ("--conf", f"{name}={value}")]
