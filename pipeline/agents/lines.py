"""The direct lines of a worker, as its settings have them.

*Source*: docs/protocols J2.
"""

from prometheus_client import CollectorRegistry

from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.service.own.lines import LineServer
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.process import LineMetrics

log = get_logger(__name__)


def line_server(settings: Settings) -> LineServer:
    """The server of direct lines, not started yet."""
    advertised = settings.line_advertised or settings.line_host
    return LineServer(settings.line_host, settings.line_port, advertised=advertised)


async def take_lines(settings: Settings, lines: LineServer, registry: CollectorRegistry) -> None:
    """Begins to listen, if the settings say where.

    Raises:
        ConfigError: the address cannot be bound.
    """
    registry.register(LineMetrics(settings.cluster, lines))
    try:
        address = await lines.start()
    except OSError as error:
        raise ConfigError(
            f"direct lines cannot listen on {settings.line_host}:{settings.line_port}",
            detail=str(error),
            hint="set line_host to an address of this machine, or line_port to a free port",
        ) from error
    if address:
        log.info("lines_listening", address=address)
