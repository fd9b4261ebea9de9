"""Docker for tests: commands, the compose project, brokers in containers."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from stilltide.connectors.local.addresses import free_port
from tests.support.looks import block_between_looks

ROOT = Path(__file__).parents[3]
KAFKA_IMAGE = "apache/kafka:4.3.1"
WORKER_IMAGE = "stilltide"
SPARK_IMAGE = "stilltide:spark"
PROJECT = "stilltide-test"
TIMEOUT_S = 600
"""Longest time of a command. On two processors that others use, three clusters with workers and
links need more than five minutes to be healthy."""

READY_S = 120
"""How long a container may take to be ready; long, because the machine may be busy."""

INDEXED = ("orders-taken", "payments-taken")
"""Topics of which the project's workers index native transactions."""

KEPT = "kept"
"""The topic of which the project's profile `table` keeps a table."""

DECIDERS = "shop-db=postgresql://shop@postgres/shop"
"""The database of the project's profile `postgres`, which is away in most tests."""

_READYZ = (
    "import urllib.request as it;"
    "print(it.urlopen('http://127.0.0.1:6066/readyz', timeout=10).read().decode(), end='')"
)

# The clean-up container is one more image to pull; every container here ends with its test.
testcontainers_config.ryuk_disabled = True

Completed = subprocess.CompletedProcess[str]


def docker(*arguments: str, check: bool = True, timeout_s: float = TIMEOUT_S) -> Completed:
    """Runs the docker command; with `check` a failure is raised with the command's output."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert not check or done.returncode == 0, f"docker {arguments}\n{done.stdout}{done.stderr}"
    return done


def run_image(image: str, *arguments: str, options: tuple[str, ...] = ()) -> Completed:
    """Runs a container to its end; does not raise if the command fails."""
    return docker("run", "--rm", *options, image, *arguments, check=False)


def ready(container: str) -> list[str]:
    """The lines of `/readyz`, requested inside of the container, once every check passes."""
    end_s = time.monotonic() + READY_S
    while True:
        asked = docker("exec", container, "python", "-c", _READYZ, check=False)
        if asked.returncode == 0:
            return asked.stdout.splitlines()
        assert time.monotonic() < end_s, asked.stderr
        block_between_looks()


class Compose:
    """The project's compose file under a name and on ports of its own."""

    def __init__(self) -> None:
        self.ports = {
            name: free_port()
            for name in (
                *(f"KAFKA_{cluster}_PORT" for cluster in "ABC"),
                *(f"WORKER_{cluster}_PORT" for cluster in "ABC"),
                "PROMETHEUS_PORT",
                "GRAFANA_PORT",
            )
        }

    def __call__(self, *arguments: str, check: bool = True) -> Completed:
        """Runs `docker compose` on the project."""
        return self.run(["docker", "compose", *arguments], check=check)

    def run(
        self, command: Sequence[str], *, check: bool = True, timeout_s: float = TIMEOUT_S
    ) -> Completed:
        """Runs a command in whose environment `docker compose` means this project."""
        settings = {name: str(port) for name, port in self.ports.items()}
        settings |= {"COMPOSE_PROJECT_NAME": PROJECT, "STILLTIDE_INDEX_TOPICS": ",".join(INDEXED)}
        settings |= {"TABLE_TOPICS": KEPT, "STILLTIDE_DECIDERS": DECIDERS}
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | settings,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done

    def bootstrap(self, cluster: str) -> str:
        """The address of a cluster's broker on this host."""
        return f"127.0.0.1:{self.ports[f'KAFKA_{cluster.upper()}_PORT']}"

    def web(self, cluster: str) -> str:
        """The address of the web site of a cluster's worker on this host."""
        return f"http://127.0.0.1:{self.ports[f'WORKER_{cluster.upper()}_PORT']}"

    def states(self) -> dict[str, str]:
        """The health of each running service."""
        lines = self("ps", "--format", "json").stdout.splitlines()
        rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return {row["Service"]: row["Health"] for row in rows}

    def container(self, service: str) -> str:
        """The id of a service's container."""
        return self("ps", "--all", "--quiet", service).stdout.strip()

    def crash(self, service: str) -> None:
        """Kills a service's process; returns when the restarted service is healthy.

        `docker kill` would count as stopped by hand, and nothing would bring the container back.
        """
        container = self.container(service)  # a restart keeps it
        before = _state(container)
        shot = f"import os; os.kill({before['Pid']}, 9)"
        options = ("--pid", "host", "--user", "0", "--entrypoint", "python")
        assert run_image(WORKER_IMAGE, "-c", shot, options=options).returncode == 0
        end_s = time.monotonic() + TIMEOUT_S
        while True:
            now = _state(container)
            if now["StartedAt"] != before["StartedAt"] and now["Health"]["Status"] == "healthy":
                return
            assert time.monotonic() < end_s, f"{service} does not come back: {now}"


def _state(container: str) -> dict[str, Any]:
    return json.loads(docker("inspect", "--format", "{{json .State}}", container).stdout)


@contextmanager
def compose_project() -> Iterator[Compose]:
    """The running project, which is removed with its volumes at the end."""
    compose = Compose()
    compose("down", "--volumes", "--timeout", "5", check=False)
    try:
        yield compose
    except BaseException:
        sys.stderr.write(compose("logs", "--tail", "40", check=False).stdout)
        raise
    finally:
        compose("--profile", "*", "down", "--volumes", "--timeout", "5")


@contextmanager
def kafka_container(**changed: str) -> Iterator[str]:
    """Runs a broker from the official image; yields the broker's address on this host.

    Args:
        changed: settings that replace those of the image.
    """
    port = free_port()
    settings = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENERS": "EXTERNAL://:9092,INTERNAL://:19092,CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"EXTERNAL://127.0.0.1:{port},INTERNAL://localhost:19092",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "EXTERNAL:PLAINTEXT,INTERNAL:PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "INTERNAL",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
        "KAFKA_MESSAGE_MAX_BYTES": str(5 * 1024 * 1024),
        "KAFKA_HEAP_OPTS": "-Xmx512m",
        **changed,
    }
    ready = LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(120)
    broker = DockerContainer(KAFKA_IMAGE).with_bind_ports(9092, port).with_envs(**settings)
    with broker.waiting_for(ready):
        yield f"127.0.0.1:{port}"


@contextmanager
def stilltide_container(*command: str, **settings: str) -> Iterator[None]:
    """Runs a worker or a link from Stilltide's image on the network of this host.

    Args:
        command: arguments of `stilltide`.
        settings: environment variables.
    """
    serving = LogMessageWaitStrategy(
        re.compile(r'"event": "(serving|replicating)"')
    ).with_startup_timeout(READY_S)
    made = (
        DockerContainer(WORKER_IMAGE)
        .with_command(list(command))
        .with_envs(**settings, STILLTIDE_WEB_PORT=str(free_port()))
        .with_kwargs(network_mode="host")
    )
    with made.waiting_for(serving):
        yield
