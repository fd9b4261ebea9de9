"""`stilltide worker`: coordinators of one cluster, as a Faust worker."""

import asyncio
import json

import click

from stilltide.pipeline.agents.worker import Worker
from stilltide.pipeline.cli.common.asking import clusters_option, replicas_options
from stilltide.pipeline.config.settings import load_settings


@click.command(
    epilog="""\b
Examples:
  stilltide worker --bootstrap-servers 127.0.0.1:9092
  stilltide worker --bootstrap-servers 127.0.0.1:9092 --instance-id worker-1
  stilltide worker --bootstrap-servers 127.0.0.1:9092 --web-port 0
  stilltide worker --index-topics orders,payments
  stilltide worker --bootstrap-servers 127.0.0.1:9092 --clusters b=127.0.0.1:9192 --replicate-from b
"""
)
@click.option("--cluster", help="Name of the cluster.  [default: a]")
@click.option("--bootstrap-servers", help="Its brokers, host:port[,host:port].")
@clusters_option
@click.option(
    "--replicate-from",
    help="Clusters to copy topics from, 'b c'; each must be among --clusters.  [default: none]",
)
@click.option(
    "--instance-id",
    "worker_instance_id",
    help="A stable name: a worker started again under it takes over at once.",
)
@click.option("--coordinators", type=int, help="Coordinators of the cluster.  [default: 4]")
@replicas_options
@click.option(
    "--index-topics", help="Index aborted native transactions of these, with commas between."
)
@click.option(
    "--session-timeout-s",
    type=float,
    help="A silent worker loses its coordinators after this.  [default: 10]",
)
@click.option(
    "--web-port",
    type=int,
    help="Port of /metrics, /livez and /readyz; 0 takes a free one.  [default: 6066]",
)
def worker(**given: object) -> None:
    """Run the coordinators of a cluster until stopped.

    Creates and verifies the system topics first; those with fewer replicas than wanted are named in
    a warning. Several workers share the coordinators; when one dies, the others take over and
    recover from the log. Prints one JSON line when it serves, with the address of /metrics, /livez
    and /readyz.
    """
    settings = load_settings(**given)
    settings.check_own_name()

    def serving(coordinators: list[int], web: str) -> None:
        line = {
            "event": "serving",
            "cluster": settings.cluster,
            "coordinators": coordinators,
            "web": web,
        }
        print(json.dumps(line), flush=True)

    asyncio.run(Worker(settings, serving).run())
