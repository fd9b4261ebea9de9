"""The names of a link's data partitions on its source and on its target.

*Source*: docs/protocols H1 (partition n to n, the same name on both clusters), H7 (another topic).
*Invariants*: everywhere in a link a data partition has its name on the target; only what asks the
source uses the name there.
"""

from stilltide.schemas.replication.publishes import PublishRoute
from stilltide.schemas.values import TopicPartition


class TopicNames:
    """Translates between both names.

    Args:
        publish: the topics of a publish; None: names are the same on both sides.
    """

    def __init__(self, publish: PublishRoute | None = None) -> None:
        self.publish = publish

    def on_source(self, data: TopicPartition) -> TopicPartition:
        """The name of a data partition on the source."""
        publish = self.publish
        return data if publish is None else TopicPartition(publish.source, data.partition)

    def on_target(self, data: TopicPartition) -> TopicPartition:
        """The name of a data partition on the target."""
        publish = self.publish
        return data if publish is None else TopicPartition(publish.target, data.partition)
