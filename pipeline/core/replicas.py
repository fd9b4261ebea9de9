"""How many replicas topics are created with, and what is said of a topic that has fewer.

*Source*: Kafka's `default.replication.factor` and `min.insync.replicas`. Every writer waits for all
in-sync replicas, so with two of them in sync the loss of one broker loses no record.
"""

from typing import Literal, NamedTuple

from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.topics import MIN_INSYNC_REPLICAS, BrokerFigures, Replicas

Automatic = Literal["auto"]
AUTO: Automatic = "auto"

_SAFE_FACTOR = 3
"""What Kafka's documentation advises: one broker may fail while another one is maintained."""


class WantedReplicas(NamedTuple):
    """The settings of these names; `auto` follows the cluster that a topic is created on."""

    replication_factor: int | Automatic = AUTO
    min_insync_replicas: int | Automatic = AUTO

    def check(self, factor: int | None = None) -> None:
        """Passes when topics of `factor` replicas can be written to; without it, as far as is set.

        Raises:
            ConfigError: `min_insync_replicas` is greater than the replication factor.
        """
        if factor is None and self.replication_factor != AUTO:
            factor = self.replication_factor
        least = self.min_insync_replicas
        if factor is not None and least != AUTO and least > factor:
            origin = " on this cluster" if self.replication_factor == AUTO else ""
            raise ConfigError(
                f"min_insync_replicas is {least}, but replication_factor is {factor}{origin}",
                detail="no record could ever be acknowledged",
                hint=f"set min_insync_replicas to {factor} at most, or raise replication_factor",
            )

    def on(self, cluster: BrokerFigures) -> Replicas:
        """What topics get that are created on this cluster.

        Raises:
            ConfigError: as `check`.
        """
        factor = self.replication_factor
        if factor == AUTO:
            default = cluster.default_replicas
            factor = default if default > 1 else min(_SAFE_FACTOR, cluster.brokers)
        self.check(factor)
        least = self.min_insync_replicas
        if least == AUTO:
            least = 2 if factor >= _SAFE_FACTOR else 1
        return Replicas(factor, least)


AUTOMATIC = WantedReplicas()
"""The default of both settings."""


def next_step(topic: str, found: Replicas, wanted: Replicas) -> str | None:
    """What gives an existing topic the replicas that are wanted; None when it has them.

    Args:
        topic: its name.
        found: as the topic is now.
        wanted: at least.
    """
    steps: list[str] = []
    if found.factor < wanted.factor:
        steps.append(
            f"assign {wanted.factor} replicas to each partition: "
            "kafka-reassign-partitions.sh --execute --reassignment-json-file FILE"
        )
    if found.min_insync < wanted.min_insync:
        steps.append(
            f"kafka-configs.sh --alter --topic {topic} "
            f"--add-config {MIN_INSYNC_REPLICAS}={wanted.min_insync}"
        )
    return "; then ".join(steps) or None
