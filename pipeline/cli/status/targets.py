"""The clusters of the settings, as `StatusCollector` looks at them; shared with the console."""

from dataclasses import replace

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.status.cluster import AWAY_S, StatusTarget
from stilltide.schemas.values import ClusterName

CLIENT = "stilltide-status"


def status_targets(settings: Settings) -> list[StatusTarget]:
    """Every cluster in `clusters`, in this order; without any, the process's own cluster.

    Raises:
        FatalError: an option of a cluster is not allowed.
    """
    if not settings.clusters:
        return [_target(settings.cluster, settings.kafka)]
    return [_target(name, settings.kafka_of(name)) for name in settings.clusters]


def _target(name: str, config: KafkaConfig) -> StatusTarget:
    connector = KafkaConnector(config)
    quick = replace(config, request_timeout_s=min(config.request_timeout_s, AWAY_S))
    return StatusTarget(
        ClusterName(name),
        config.bootstrap_servers,
        connector,
        KafkaConnector(quick),
        connector.native_transactions(CLIENT),
    )
