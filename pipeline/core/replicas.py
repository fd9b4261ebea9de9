"""How many replicas new topics get, and what an operator can do about a topic with fewer.

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

_SAFE_IN_SYNC = 2
"""The replicas in sync with which the loss of one broker loses no acknowledged record."""


class WantedReplicas(NamedTuple):
    """The settings `replication_factor` and `min_insync_replicas`; `auto` follows the cluster."""

    replication_factor: int | Automatic = AUTO
    min_insync_replicas: int | Automatic = AUTO

    def check(self, factor: int | None = None) -> None:
        """Checks that topics of `factor` replicas could be written to.

        Without `factor` the setting `replication_factor` is checked, unless that is `auto`.

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
        """The replicas of topics that are created on this cluster.

        Raises:
            ConfigError: `min_insync_replicas` is greater than the replication factor.
        """
        factor = self.replication_factor
        if factor == AUTO:
            default = cluster.default_replicas
            factor = default if default > 1 else min(_SAFE_FACTOR, _expected_brokers(cluster))
        self.check(factor)
        least = self.min_insync_replicas
        if least == AUTO:
            least = _SAFE_IN_SYNC if factor >= _SAFE_FACTOR else 1
        return Replicas(factor, least)


def complete(cluster: BrokerFigures) -> BrokerFigures:
    """The figures of the cluster once every broker that it knows is up."""
    return cluster._replace(brokers=max(cluster.brokers, cluster.registered))


def _expected_brokers(cluster: BrokerFigures) -> int:
    """The brokers that will hold replicas: also a broker that is down, if it can be spared now.

    The controller gives replicas to brokers that are down. Two that are up are as many as must be
    in sync of three.
    """
    spare = cluster.brokers >= _SAFE_IN_SYNC
    return complete(cluster).brokers if spare else cluster.brokers


AUTOMATIC = WantedReplicas()
"""The default of both settings."""


def next_step(topic: str, found: Replicas, wanted: Replicas) -> str | None:
    """The commands that give an existing topic enough replicas; None when it has enough.

    Args:
        topic: name of the topic.
        found: the topic's replicas now.
        wanted: the least that the topic should have.
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
