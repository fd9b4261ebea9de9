"""The one place where errors of kafka-python become ours.

*Source*: kafka.md 2; `connectors.kafka.errors`, whose codes are the brokers' and so the same.
"""

import kafka.errors as kafka_python
from confluent_kafka import KafkaError

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.kafka.errors import translate


def translate_raw(
    error: kafka_python.KafkaError, address: str, action: str, *, detail: str = ""
) -> ConnectorError:
    """Our error for one of kafka-python's; the brokers' codes mean the same in both libraries.

    Args:
        error: of kafka-python.
        address: bootstrap servers of the cluster.
        action: what failed, such as `cannot fetch t/0@7`.
        detail: what else is known.
    """
    if isinstance(error, kafka_python.BrokerResponseError) and error.errno is not None:
        detail = detail or (str(error) if error.args else "")
        return translate(KafkaError(error.errno), address, action, detail=detail)
    away = KafkaError._TRANSPORT if error.retriable else KafkaError._FAIL  # noqa: SLF001 - the client's public name begins so
    return translate(KafkaError(away, repr(error)), address, action, detail=detail)
