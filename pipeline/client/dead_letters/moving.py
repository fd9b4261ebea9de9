"""Looks at the dead letters of a topic, and replays or drops them, each exactly once.

*Source*: docs/protocols G2.

*Invariants*:
- A dead letter is acknowledged in the transaction that sends its message again, by a group of
  Stilltide's own. So a command that is killed and repeated sends no message twice.
- Only dead letters that were planned are touched.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from stilltide.connectors.ports.connector import GroupConnector, closing
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.drivers.groups.unread import positions_of, unread
from stilltide.pipeline.errors import CompactedTopicError, DeadLetterError
from stilltide.schemas.errors import DecodeError, StilltideError
from stilltide.schemas.pending_ack.dead_letters import DeadLetterHeaders, decode, of_application
from stilltide.schemas.values import EndOffset, TopicPartition

BEFORE_MAX = 9_000
"""Dead letters in front of a single one that is moved: they are read, and kept until the end."""

BATCH_RECORDS = 100
"""Dead letters that are moved in one transaction."""

CLIENT = "stilltide-dead-letters"


class Selection(NamedTuple):
    """Which dead letters of a topic are meant; None means no restriction.

    Attributes:
        partition: only those in this partition.
        offset: only the one at this offset.
        limit: only so many, those with the lowest offsets of each partition.
    """

    partition: int | None = None
    offset: int | None = None
    limit: int | None = None


class Letter(NamedTuple):
    """A record of a dead-letter topic that was not moved yet.

    Attributes:
        record: the record.
        headers: what its headers say; None: it is no dead letter, or its headers are damaged.
        damage: what is wrong with its headers; empty if nothing is.
    """

    record: Record
    headers: DeadLetterHeaders | None
    damage: str


@dataclass
class MovePlan:
    """What a command will move.

    Attributes:
        topic: the dead-letter topic.
        selection: which dead letters are meant.
        ends: for each partition, the end of what is moved.
        counts: number of dead letters by partition and origin; None for a record without one.
        foreign: the first record that is no dead letter.
    """

    topic: str
    selection: Selection
    ends: dict[TopicPartition, EndOffset] = field(default_factory=dict[TopicPartition, EndOffset])
    counts: Counter[tuple[int, str | None]] = field(default_factory=Counter[tuple[int, str | None]])
    foreign: Letter | None = None

    @property
    def count(self) -> int:
        """The number of dead letters."""
        return self.counts.total()


def group_of(connector: GroupConnector, topic: str) -> str:
    """The group whose position says which dead letters of a topic were moved."""
    return connector.own_id(f"dead-letters-{topic}")


async def letters_of(
    connector: GroupConnector, topic: str, selection: Selection, *, timeout_s: float
) -> AsyncGenerator[Letter, None]:
    """The dead letters that were not replayed or dropped, without joining the group.

    What a command moved in the second before it was killed may be listed; a later command does not
    move it again.

    Raises:
        FatalError: the topic does not exist.
        DeadLetterError: the selected partition does not exist.
        UnavailableError: the cluster stayed away.
    """
    async with closing(connector.admin()) as admin:
        positions = await positions_of(connector, admin, topic, group_of(connector, topic))
        if selection.partition is not None:
            wanted = TopicPartition(topic, selection.partition)
            if wanted not in positions:
                raise DeadLetterError(
                    f"the topic has partitions 0 to {len(positions) - 1}",
                    hint="correct --partition",
                    topic=topic,
                    partition=selection.partition,
                )
            positions = {wanted: positions[wanted]}
        left = selection.limit
        reading = unread(connector, admin, positions, client_id=CLIENT, timeout_s=timeout_s)
        async with aclosing(reading) as batches:
            async for letters in batches:
                for record in letters.records:
                    if selection.offset not in {None, record.offset}:
                        continue
                    if left == 0:
                        return
                    left = None if left is None else left - 1
                    yield _letter(record)


async def plan(
    connector: GroupConnector, topic: str, selection: Selection, *, timeout_s: float
) -> MovePlan:
    """What is to be moved; nothing is changed. Raises as `letters_of`."""
    made, only, before = MovePlan(topic, selection), selection.offset, 0
    reading = letters_of(connector, topic, selection._replace(offset=None), timeout_s=timeout_s)
    async with aclosing(reading) as letters:
        async for letter in letters:
            record = letter.record
            if only is not None and record.offset > only:
                break
            if only not in {None, record.offset}:
                before += 1
                if before > BEFORE_MAX:
                    raise DeadLetterError(
                        f"more than {BEFORE_MAX} dead letters come before this one",
                        hint="replay or drop some of them first, with --partition and --limit",
                        topic=topic,
                        partition=record.partition,
                        offset=only,
                    )
                continue
            made.ends[record.data] = EndOffset(record.offset + 1)
            origin = letter.headers.data.topic if letter.headers else None
            made.counts[record.partition, origin] += 1
            if letter.headers is None and made.foreign is None:
                made.foreign = letter
    return made


async def move(
    connector: GroupConnector,
    planned: MovePlan,
    *,
    replay: bool,
    progress: Callable[[int], None] = lambda _count: None,
) -> int:
    """Moves what was planned, and returns how many dead letters that were.

    With `replay` the messages go back to where they came from; else they are dropped. A dead letter
    that another command has moved meanwhile is passed over.

    Args:
        connector: the cluster.
        planned: result of `plan`.
        replay: whether to send the messages again.
        progress: called with the number of dead letters moved so far.

    Raises:
        DeadLetterError: one of the records is no dead letter; nothing was moved.
        NotAssignedError: another command moves dead letters of the topic.
        Others: a transaction failed; what the error's transaction would have moved was not moved.
    """
    if replay and planned.foreign is not None:
        raise _foreign(planned.foreign)
    moved = 0
    async with (
        TransactionClient(connector=connector, name=CLIENT) as client,
        Subscription(
            [planned.topic],
            group=group_of(connector, planned.topic),
            connector=connector,
            client_id=CLIENT,
            acknowledgements=True,
        ) as letters,
    ):
        batch: list[Record] = []
        async with aclosing(_planned(letters, planned)) as records:
            async for record in records:
                batch.append(record)
                if len(batch) == BATCH_RECORDS:
                    await _move(client, letters, batch, replay=replay)
                    moved += len(batch)
                    batch = []
                    progress(moved)
        if batch:
            await _move(client, letters, batch, replay=replay)
    return moved + len(batch)


async def _planned(letters: Subscription, planned: MovePlan) -> AsyncGenerator[Record, None]:
    """The planned dead letters, as they are delivered."""
    only = planned.selection.offset
    if not planned.ends:
        return
    async for record in letters.read_to(planned.ends):
        if only in {None, record.offset}:
            yield record


async def _move(
    client: TransactionClient, letters: Subscription, batch: list[Record], *, replay: bool
) -> None:
    async with client.transaction() as txn:
        for record in batch:
            await txn.acknowledge(letters, record)
            if not replay:
                continue
            letter = _letter(record)
            if letter.headers is None:
                raise _foreign(letter)
            data = letter.headers.data
            try:
                await txn.send(
                    data.topic,
                    record.value,
                    key=record.key,
                    headers=of_application(record.headers),
                    partition=data.partition,
                )
            except StilltideError as error:
                raise DeadLetterError(
                    f"the message cannot go back to {data}",
                    detail=str(error),
                    hint=_way_on(error),
                    data=record.data,
                    offset=record.offset,
                ) from error


def _way_on(error: StilltideError) -> str:
    """The next step for a message that cannot go back."""
    drop = "drop the dead letter with `stilltide dead-letter drop`"
    if isinstance(error, CompactedTopicError):
        return f"send the message by a producer without coordinated transactions, then {drop}"
    return f"{error.hint}, or {drop}" if error.hint else drop


def _letter(record: Record) -> Letter:
    try:
        headers = decode(record.headers)
    except DecodeError as error:
        return Letter(record, None, error.primary)
    return Letter(record, headers, "" if headers else "the record has no header of a dead letter")


def _foreign(letter: Letter) -> DeadLetterError:
    record = letter.record
    return DeadLetterError(
        "the record is no dead letter, so it cannot be replayed",
        detail=letter.damage,
        hint="drop it with `stilltide dead-letter drop`, or select other records",
        data=record.data,
        offset=record.offset,
    )
