"""`stilltide console`: the state of all clusters in a browser.

*Source*: docs/console.md. *Invariants*: nothing is written to any cluster; beyond loopback nobody
looks without a token, unless the operator vouches for a proxy.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from stilltide.pipeline.agents.web_guard import WebAccess
from stilltide.pipeline.cli.common.asking import clusters_option, on_stop
from stilltide.pipeline.cli.common.output import print_event, say
from stilltide.pipeline.cli.status import (
    audit_readers,
    limits_of,
    state_options,
    status_targets,
)
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.console.feed import Feed
from stilltide.pipeline.console.server import (
    ConsoleServer,
    ViewerAccess,
    is_loopback,
    require_protection,
    token_of,
)
from stilltide.pipeline.core.status.findings import StatusLimits
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.drivers.status.collector import StatusCollector
from stilltide.pipeline.drivers.status.looks.looks import Looks
from stilltide.pipeline.interpreter import save_memory

PORT = 6070


@click.command(
    epilog="""\b
Exit codes:
  0  stopped by SIGINT or SIGTERM
  1  the command failed; the error names the next step
\b
Examples:
  stilltide console --clusters 'a=127.0.0.1:9092 b=127.0.0.1:9192'
  openssl rand -hex 32 > token; stilltide console --host 0.0.0.0 --token-file token
"""
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    envvar="STILLTIDE_CONSOLE_TOKEN_FILE",
    show_envvar=True,
    help="File with the token that viewers need.",
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="Vouch that only a proxy with TLS and a password, or this machine, reaches the port.",
)
@state_options
@clusters_option
def console(
    *,
    host: str,
    port: int,
    token_file: Path | None,
    behind_proxy: bool,
    hold_s: float,
    audits: Sequence[Path],
    clusters: str | None,
) -> None:
    """Show all clusters in a browser, and what needs a person.

    The pages only read. They listen on loopback; beyond it they need a token, or a proxy that asks
    for a password and speaks TLS.
    """
    token = None if token_file is None else token_of(token_file)
    require_protection(host, token, behind_proxy=behind_proxy)
    settings = load_settings(clusters=clusters)
    save_memory()
    asyncio.run(_serve(settings, (host, port), ViewerAccess(token), limits_of(hold_s), audits))


async def _serve(
    settings: Settings,
    address: tuple[str, int],
    access: ViewerAccess,
    limits: StatusLimits,
    audits: Sequence[Path],
) -> None:
    """Serves until SIGINT or SIGTERM."""
    stopped = asyncio.Event()
    on_stop(stopped.set)
    targets = status_targets(settings)
    async with StatusCollector(targets, audits=audit_readers(audits)) as collector:
        looks = Looks(targets)
        feed = Feed(collector.collect, limits=limits)
        hosts = WebAccess(settings.allowed_hosts)
        server = ConsoleServer(feed, looks.answers, access, hosts=hosts)
        running = asyncio.create_task(feed.run())
        stopping = asyncio.create_task(stopped.wait())
        first = asyncio.create_task(_say_who_is_away(feed))
        try:
            web = await server.start(*address)
            print_event({"event": "serving", "web": web})
            if not is_loopback(address[0]):
                say("pages and the token travel in clear text; put a TLS proxy in front")
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            await cancelled(running, stopping, first)
            await server.close()
            await looks.close()


async def _say_who_is_away(feed: Feed) -> None:
    """Says once which clusters do not answer at the start: an address may be wrong."""
    shot = await feed.now()
    while any(it.brokers.value is None and not it.away for it in shot.status.clusters):
        shot = await feed.after(shot.number)
    for cluster in shot.status.clusters:
        if cluster.away:
            say(
                f"no broker answers at {cluster.address} (cluster {cluster.name}): correct the"
                " address, or start a broker; the pages show when one answers"
            )
