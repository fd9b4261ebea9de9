"""An answer with the bytes of the last one is not decoded."""

from typing import Any

from kafka.net.connection import KafkaProtocol
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from stilltide.connectors.kafka.raw.same_answers import LastAnswer, RepeatedRequest

VERSION = 8
Group = OffsetFetchResponse.OffsetFetchResponseGroup
Topic = Group.OffsetFetchResponseTopics
Partition = Topic.OffsetFetchResponsePartitions


def answer(offset: int, correlation_id: int) -> bytes:
    """What a broker sends."""
    partition = Partition(
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=-1,
        metadata="",
        error_code=0,
    )
    group = Group(group_id="g", topics=[Topic(name="t", partitions=[partition])], error_code=0)
    response = OffsetFetchResponse(throttle_time_ms=0, groups=[group], version=VERSION)
    response.with_header(correlation_id=correlation_id)
    return response.encode(framed=True, header=True)


def offset_in(response: Any) -> int:
    """What `answer` was given."""
    return response.groups[0].topics[0].partitions[0].committed_offset


def test_an_answer_is_decoded_if_it_differs():
    """The same object for the same bytes, by kafka-python's own connection."""
    protocol, last = KafkaProtocol(client_id="test"), LastAnswer()
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    request = OffsetFetchRequest(groups=[asked], min_version=VERSION, max_version=VERSION)
    found = list[Any]()
    for offset in (7, 7, 8):
        repeated = RepeatedRequest(request, last)
        repeated.API_VERSION = VERSION
        number = protocol.send_request(repeated)
        ((told, response),) = protocol.receive_bytes(answer(offset, number))
        assert told == number
        found.append(response)
    assert [offset_in(it) for it in found] == [7, 7, 8]
    assert found[0] is found[1]
