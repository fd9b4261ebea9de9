"""What each kind of finding means, what to do about it, and the command that helps.

*Source*: docs/protocols C6, D, F. A command has placeholders in capitals; `TOPIC` and others are
filled in from the first finding of the kind if it names them.

*Invariants*: every kind of finding has a text (`tests/unit/jobs/test_pages.py`).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from stilltide.pipeline.jobs.audits.verdicts import Finding, FindingKind
from stilltide.schemas.printable import shortened


class Advice(NamedTuple):
    """The text for a kind of finding.

    Attributes:
        meaning: what the finding means, for readers of the topics.
        action: what to do.
        command: command line that shows more or mends it, with placeholders in capitals.
    """

    meaning: str
    action: str
    command: str


_SAME_AUDIT = "stilltide audit run --topics TOPIC"
_READ_HERE = "stilltide native aborted-ranges TOPIC PARTITION"

ADVICE: Mapping[FindingKind, Advice] = MappingProxyType(
    {
        FindingKind.MISSING: Advice(
            "A committed transaction has fewer records here than its client promised: readers see "
            "a part of it.",
            "Find out whether the topic lost records (unclean leader election, DeleteRecords by "
            "hand) before the transaction is written again by its application.",
            "stilltide txn describe TXN",
        ),
        FindingKind.SURPLUS: Advice(
            "A committed transaction has more records here than its client promised: something "
            "else wrote with its id, or a record was written twice.",
            "Look at the records from the first offset on, and for a producer that copies headers "
            "from other topics.",
            "stilltide txn describe TXN",
        ),
        FindingKind.LATE: Advice(
            "Records of a committed transaction lie past its end. Readers withhold them, so the "
            "topic shows what was committed, and the writer believes in more.",
            "Find the client that writes after its commit; clients of this version cannot.",
            "stilltide txn describe TXN",
        ),
        FindingKind.MIXED: Advice(
            "A transaction committed in one place and aborted in another: readers see a part of "
            "it.",
            "Look for a second program that writes to stilltide.txn-markers, and restore its "
            "topics from the application's own source.",
            "stilltide repair stilltide.txn-markers",
        ),
        FindingKind.MALFORMED: Advice(
            "Records have a `txn` header that names no transaction. Readers withhold them for "
            "ever.",
            "Find the producer that sets the header by itself; only TransactionClient may.",
            "stilltide acl print --component application",
        ),
        FindingKind.UNDECIDED: Advice(
            "A transaction has no outcome yet. Readers of the partition wait at its first record.",
            "Wait for its client, or abort it in the client's place; then audit again.",
            "stilltide txn abort TXN --yes",
        ),
        FindingKind.ORPHAN: Advice(
            "A transaction has ended elsewhere and has no outcome here: its marker is on its way, "
            "or it wrote without registering.",
            "Audit again in a minute. If the finding stays, the writer is no TransactionClient, "
            "and readers wait here until the records have left the log.",
            _SAME_AUDIT,
        ),
        FindingKind.TRIMMED: Advice(
            "A committed transaction has fewer records than promised, and some may have left the "
            "log by retention or compaction.",
            "Nothing is known to be wrong. Audit before retention deletes records, or from a "
            "higher offset.",
            f"{_SAME_AUDIT} --from OFFSET",
        ),
        FindingKind.BEYOND_END: Advice(
            "A committed transaction has records past the end of the audit, so its count is not "
            "known.",
            "Audit again without --to, or with a higher one.",
            _SAME_AUDIT,
        ),
        FindingKind.COMPACTED: Advice(
            "The topic compacts and holds records of coordinated transactions. Kafka's cleaner "
            "keeps the newest record of each key, also one of an aborted transaction, and deletes "
            "the committed one.",
            "Let the topic delete, and publish it to one that compacts. The setting "
            "allow_compacted accepts topics whose keys are never written again.",
            "stilltide topics check",
        ),
        FindingKind.UNCOUNTED: Advice(
            "Below these offsets there are committed transactions whose markers are no longer "
            "kept, and with the markers the counts that the transactions promised are gone.",
            "Nothing is known to be wrong. Audit while the markers are kept "
            "(`marker_retention_ms`), or accept the offsets if an earlier audit counted them.",
            "stilltide audit run --topics TOPIC --accept-unchecked",
        ),
        FindingKind.ACCEPTED: Advice(
            "Below these offsets the counts that committed transactions promised are gone, and "
            "`--accept-unchecked` accepts that.",
            "Nothing, if an earlier audit counted the records below these offsets.",
            _SAME_AUDIT,
        ),
        FindingKind.DIFFERENT: Advice(
            "Readers by aborted-index and Kafka's read_committed readers see different records.",
            "Drop the index of the topic and index it again; if the finding stays, report it with "
            "the batches at the offset.",
            "stilltide index drop TOPIC",
        ),
        FindingKind.RECOUNTED: Advice(
            "Two reads of a compacted topic differ; its cleaner may have run in between.",
            "Audit again while the cleaner rests.",
            _SAME_AUDIT,
        ),
        FindingKind.UNCOVERED: Advice(
            "aborted-index does not cover the range, so readers by the index cannot read it.",
            "Bring the index up to date, then audit again.",
            f"{_SAME_AUDIT} --update-index",
        ),
        FindingKind.UNEXPLAINED: Advice(
            "Offsets of a topic without compaction hold neither a record nor a marker: records "
            "were lost.",
            "Look in the logs of the brokers for a truncation or an unclean leader election.",
            _READ_HERE,
        ),
        FindingKind.UNREAD: Advice(
            "Spark read another number of records than the batches of the partition hold.",
            "Audit again; if the finding stays, look for an old connector for Kafka on Spark's "
            "class path.",
            _SAME_AUDIT,
        ),
        FindingKind.HANGING: Advice(
            "A native transaction is open and no coordinator will end it. Every read_committed "
            "reader of the partition waits for ever.",
            "Abort it on this partition; without --yes the command shows what it would do.",
            "stilltide native abort TOPIC PARTITION OFFSET",
        ),
        FindingKind.OVERDUE: Advice(
            "A native transaction is open for longer than its time-out; its coordinator will abort "
            "it, or hangs.",
            "Watch whether it ends. If not, fence its transactional id.",
            "stilltide native hanging TOPIC",
        ),
        FindingKind.UNASKED: Advice(
            "The brokers did not answer which native transactions are open, so none is known.",
            "Give the user of the audit the rights that it needs, and audit again.",
            "stilltide acl print --component audit",
        ),
        FindingKind.LEAKED: Advice(
            "The table holds records that no reader may see: of aborted transactions, or past the "
            "end of a committed one.",
            "Build the table again with a job that reads committed records only.",
            f"{_SAME_AUDIT} --table TABLE",
        ),
        FindingKind.UNJUDGED: Advice(
            "The table holds records outside the audited range or undecided ones, or records that "
            "a cleaner has removed since.",
            "Audit the range that the table was made from.",
            f"{_SAME_AUDIT} --from OFFSET --table TABLE",
        ),
        FindingKind.UNREADABLE: Advice(
            "The table cannot be read, or lacks the columns topic, partition and offset.",
            "Write the three columns into the table, and give the path that Spark reads.",
            f"{_SAME_AUDIT} --table TABLE",
        ),
    }
)
"""The text for each kind."""


def command(kind: FindingKind, first: Finding | None) -> str:
    """The command of a kind, with what its first listed finding names.

    A name that a shell would not take as one word stays a placeholder: nobody should paste it.
    """
    text = ADVICE[kind].command
    if first is None:
        return text
    names = {
        "TOPIC": first.topic,
        "PARTITION": first.partition,
        "OFFSET": first.offset,
        "TXN": first.txn,
    }
    words = [
        str(names[word]) if names.get(word) is not None and _is_word(str(names[word])) else word
        for word in text.split(" ")
    ]
    return " ".join(words)


def _is_word(text: str) -> bool:
    """Whether a shell takes the text as one word, as it does names of topics (Kafka's rule)."""
    plain = text.replace(".", "").replace("_", "").replace("-", "").replace(":", "")
    return (
        plain.isascii() and plain.isalnum() and not text.startswith("-") and shortened(text) == text
    )
