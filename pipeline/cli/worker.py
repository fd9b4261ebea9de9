"""`stilltide worker`: the services of one cluster, as a Faust worker."""

import asyncio

import click

from stilltide.pipeline.agents.worker import Worker
from stilltide.pipeline.cli.common.asking import clusters_option, replicas_options
from stilltide.pipeline.cli.common.output import print_event
from stilltide.pipeline.cli.common.processes import (
    OwnArguments,
    port_of,
    processes_option,
    run_processes,
)
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.logging import hear_clients


@click.command(
    epilog="""\b
Examples:
  stilltide worker --bootstrap-servers 127.0.0.1:9092
  stilltide worker --bootstrap-servers 127.0.0.1:9092 --instance-id worker-1
  stilltide worker --bootstrap-servers 127.0.0.1:9092 --web-port 0
  stilltide worker --bootstrap-servers 127.0.0.1:9092 --processes 4
  stilltide worker --index-topics orders,payments
  stilltide worker --publish orders:orders.committed
  stilltide worker --bootstrap-servers 127.0.0.1:9092 --clusters b=127.0.0.1:9192 --replicate-from b
"""
)
@click.option("--cluster", help="Name of the cluster.  [default: a]")
@click.option("--bootstrap-servers", help="Brokers of the cluster: host:port[,host:port].")
@clusters_option
@click.option(
    "--replicate-from",
    help="Clusters to copy topics from, 'b c'; each must be among --clusters.  [default: none]",
)
@click.option(
    "--instance-id",
    "worker_instance_id",
    help="Stable name of the worker: restarted under it, the worker takes over at once.",
)
@click.option("--coordinators", type=int, help="Coordinators of the cluster.  [default: 4]")
@replicas_options
@click.option(
    "--index-topics", help="Topics whose aborted native transactions to index, separated by commas."
)
@click.option(
    "--publish",
    help="Topics to publish, such as orders:orders.committed, separated by commas.",
)
@click.option(
    "--session-timeout-s",
    type=float,
    help="Seconds after which a silent worker loses its partitions.  [default: 10]",
)
@click.option(
    "--web-port",
    type=int,
    help="Port of /metrics, /livez and /readyz; 0 takes a free one.  [default: 6066]",
)
@processes_option
def worker(*, processes: int, **given: object) -> None:
    """Run coordinators, snapshot writers and all other services of a cluster until stopped.

    Creates and verifies the system topics first; a warning names topics with fewer replicas than
    wanted. Several workers share the work; when one dies, the others take over and recover from the
    logs. Prints one JSON line when it serves, with the address of /metrics, /livez and /readyz.
    """
    settings = load_settings(**given)
    settings.check_own_name()
    if processes > 1:
        run_processes([_process(settings, number) for number in range(processes)])
        return
    hear_clients()

    def serving(coordinators: list[int], web: str) -> None:
        event = {"event": "serving", "cluster": settings.cluster}
        print_event({**event, "coordinators": coordinators, "web": web})

    asyncio.run(Worker(settings, serving).run())


def _process(settings: Settings, number: int) -> OwnArguments:
    """What one of several workers has of its own."""
    options = ["--processes", "1", "--web-port", str(port_of(settings.web_port, number))]
    if settings.worker_instance_id is not None:
        options += ["--instance-id", f"{settings.worker_instance_id}-{number}"]
    line_port = str(port_of(settings.line_port, number))
    return OwnArguments(options, {"STILLTIDE_LINE_PORT": line_port})
