"""The one place where errors of kafka-python become connector errors.

*Source*: `connectors.kafka.errors`: brokers' error codes are the same in both libraries.
"""

import kafka.errors as kafka_python
from confluent_kafka import KafkaError

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.kafka.errors import translate


def translate_raw(
    error: kafka_python.KafkaError, address: str, action: str, *, detail: str = ""
) -> ConnectorError:
    """The connector error for an error of kafka-python.

    Args:
        error: kafka-python's error.
        address: bootstrap servers of the cluster.
        action: the failed action, such as `cannot fetch t/0@7`.
        detail: further evidence.
    """
    if isinstance(error, kafka_python.BrokerResponseError) and error.errno is not None:
        detail = detail or (str(error) if error.args else "")
        return translate(KafkaError(error.errno), address, action, detail=detail)
    away = KafkaError._TRANSPORT if error.retriable else KafkaError._FAIL  # noqa: SLF001 - the client's public name begins so
    return translate(KafkaError(away, repr(error)), address, action, detail=detail)
