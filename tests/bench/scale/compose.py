"""The compose file at rest: processor time of each container, in ms/s, and of all but the JVMs.

Needs a Docker engine and the images (`make images`). The engine counts the time of a container with
its health checks, each of which starts a process; `program` is that of its first process alone.

Sizes: REST_S.
"""

import docker
from docker.errors import DockerException

from stilltide.pipeline.cli.common.output import say
from tests.bench.harness import cpu_s, report, size
from tests.bench.spent import past
from tests.support.processes.containers import compose_project

JVMS = "kafka"
"""How the names of services begin that are no programs of Stilltide."""

SETTLE_S = 30.0
NANOSECONDS_IN_MS = 1e6


async def run() -> None:
    """Measures and reports."""
    seconds = float(size("REST_S", 60))
    engine = _engine()
    with compose_project() as project:
        project("up", "--detach", "--wait", "--wait-timeout", "280")
        containers = {name: project.container(name) for name in sorted(project.states())}
        await past(SETTLE_S)
        before = _spent_ms(engine, containers)
        await past(seconds)
        after = _spent_ms(engine, containers)
    rows = [
        {
            "service": name,
            "container": (after[name][0] - before[name][0]) / seconds,
            "program": (after[name][1] - before[name][1]) / seconds,
        }
        for name in containers
    ]
    ours = [row for row in rows if not str(row["service"]).startswith(JVMS)]
    total = {
        "service": "all but the JVMs",
        **{name: sum(float(row[name]) for row in ours) for name in ("container", "program")},
    }
    report("compose", [*rows, total])


def _engine() -> docker.DockerClient:
    try:
        return docker.from_env()
    except DockerException as error:
        say(f"compose: no Docker engine answers: {error}")
        raise SystemExit(4) from error


def _spent_ms(
    engine: docker.DockerClient, containers: dict[str, str]
) -> dict[str, tuple[float, float]]:
    """So far, by service: of the container, and of its first process."""
    found: dict[str, tuple[float, float]] = {}
    for name, identity in containers.items():
        used = engine.api.stats(identity, stream=False, one_shot=True)["cpu_stats"]["cpu_usage"]
        pid = engine.api.inspect_container(identity)["State"]["Pid"]
        found[name] = used["total_usage"] / NANOSECONDS_IN_MS, 1000 * cpu_s(pid)
    return found
