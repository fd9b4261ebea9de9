"""Messages of Kafka's protocol that kafka-python does not define.

*Source*: KIP-848; the JSON files are those of Kafka 4.3.1.
"""

import sys

from kafka.protocol.api_message import ApiMessage

_HERE = sys.modules[__name__]


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_HERE):
    """Asks for groups of the newer protocol."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_HERE):
    """Groups of the newer protocol with their members, of either protocol."""


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_HERE):
    """A sign of life of a member of the newer protocol; with epoch -1 the member leaves."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_HERE):
    """The answer to a sign of life."""
