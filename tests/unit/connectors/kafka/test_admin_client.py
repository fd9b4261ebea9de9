"""What an admin's client remembers of its connections; none of them is ever made."""

from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException

from stilltide.connectors.kafka.admin.client import AdminClients, SharedAdminClients
from stilltide.connectors.kafka.config import KafkaConfig
from tests.support.looks import LOOK_EACH_S, between_looks

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN)
CUT_OFF = KafkaError(KafkaError._TRANSPORT)
REFUSED = KafkaError(KafkaError._SSL)


def test_the_cause_is_kept():
    """Not what follows upon it; of other errors the last."""
    clients = AdminClients(KafkaConfig("localhost:1"))
    clients.note_error(CUT_OFF)
    clients.note_error(DOWN)
    assert clients.last_error is CUT_OFF
    clients.note_error(REFUSED)
    for later in (CUT_OFF, DOWN):
        clients.note_error(later)
        assert clients.last_error is REFUSED


async def test_an_answer_ends_a_refusal_and_a_failure_does_not():
    """What was wrong is right then."""
    config = KafkaConfig("localhost:1")
    config.contact.made = True
    clients = AdminClients(config)
    clients.note_error(REFUSED)
    failed, answered = Future[int](), Future[int]()
    failed.set_exception(KafkaException(CUT_OFF))
    answered.set_result(1)
    await clients.ask(lambda _: {"a": failed})
    assert clients.last_error is REFUSED
    await clients.ask(lambda _: {"a": failed, "b": answered})
    assert clients.last_error is None
    await clients.close()


async def test_a_client_without_a_call_is_ended_and_the_next_call_makes_another():
    """A client with a call under way is kept, however long the call takes."""
    clients = AdminClients(KafkaConfig("localhost:1"), unused_s=LOOK_EACH_S / 2)
    async with clients.calling() as client:
        async with clients.calling():
            pass
        await between_looks()
        async with clients.calling() as later:
            assert later is client
    while later is client:
        await between_looks()
        async with clients.calling() as later:
            pass
    await clients.close()


async def test_clients_are_shared_until_the_last_admin_leaves():
    """An admin that leaves, even twice, takes the client of another one with it in no case."""
    shared, one, other = SharedAdminClients(KafkaConfig("localhost:1")), object(), object()
    shared.join(one)
    shared.join(other)
    async with shared.questions.calling() as client:
        pass
    await shared.leave(one)
    await shared.leave(one)
    async with shared.questions.calling() as same:
        assert same is client
    await shared.leave(other)
    shared.join(one)
    async with shared.questions.calling() as later:
        assert later is not client
    await shared.leave(one)
