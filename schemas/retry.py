"""When what has failed is tried again: one value, and the table of all such times.

*Source*: docs/protocols B4, B8, B9, C1b, J4. *Invariants*: a row of tries never becomes denser than
its first wait, and never rarer than its longest one.
"""

import math
from typing import NamedTuple


class Retry(NamedTuple):
    """The waits between the tries of one thing.

    Attributes:
        first_s: from the first failure to the next try.
        factor: each further wait is so many times the one before.
        most_s: the longest wait, if longer than the first one.
        jitter: chance takes away up to this share of each wait, so that two processes do not act
            in step.
        sound_s: a try that has lasted for longer, and fails, begins a new row of failures;
            infinite: only a success ends a row.
        give_up_s: a row that has lasted for so long is final, from the beginning of its first try.
    """

    first_s: float
    factor: float = 1.0
    most_s: float = 0.0
    jitter: float = 0.0
    sound_s: float = math.inf
    give_up_s: float = math.inf

    def wait_s(self, failures: int = 1, luck: float = 0.0) -> float:
        """From the failure with this number in its row, from 1 on, to the next try.

        Args:
            failures: number of the failure.
            luck: number in `[0, 1]` that chance has drawn.
        """
        grown = min(failures - 1, _GROWN_MAX)
        wait_s = min(self.first_s * self.factor**grown, max(self.most_s, self.first_s))
        return wait_s * (1 - self.jitter * luck)

    def wait_ms(self, failures: int = 1) -> int:
        """As `wait_s`, without chance, in milliseconds."""
        return round(1000 * self.wait_s(failures))

    def scaled(self, times: float) -> "Retry":
        """The same policy with waits of so many times the length."""
        return self._replace(first_s=self.first_s * times, most_s=self.most_s * times)

    def limited(self, give_up_s: float) -> "Retry":
        """The same waits for one call, which is given up after so long."""
        return self._replace(sound_s=math.inf, give_up_s=give_up_s)


_GROWN_MAX = 64
"""Failures of a row after which a wait grows no more, since powers have an end."""

OUTAGE = Retry(0.25)
"""Between two questions whether a cluster is back (B9): a broker answers within milliseconds, and a
quarter of a second is short beside the seconds of an election."""

OWNERSHIP = Retry(1.0, jitter=1.0)
"""From the end of an ownership by a fence, or by a failure that passes, to the next one (B4): a
fence may be that of a dead process, and two owners must not fence each other in step."""

OWNER_ENDED = Retry(60.0, 2.0, 600.0, sound_s=600.0)
"""From the end of an owner by an error to its next try (B8): an operator has to mend something, and
each try replays a log."""

LINK_ENDED = Retry(4.0, 2.0, 300.0, jitter=0.5, sound_s=600.0)
"""From the end of a link by an error to its next start (B8): a link whose topics do not fit goes on
within minutes of a repair. A link that was fenced or refused waits as `OWNERSHIP` says."""

PROCESS_KILLED = Retry(1.0, 2.0, 60.0, sound_s=60.0)
"""From the kill of a process of `--processes` to its next start: mostly a want of memory, which
would kill it again."""

LINK_LIFE = Retry(0.5, 2.0, 5.0, sound_s=30.0)
"""From the failure of one positions partition of a link, or of one of the link's questions, to the
next try: mostly an election."""

REFUSED_ENTRY = Retry(0.25)
"""From an entry that the cluster has refused to the one that decides it (B5, C17)."""

STEP = Retry(1.0)
"""From a step of a coordinator or snapshot writer that failed or got no answer to its repetition
(C4, E1): all steps may be done twice, and what failed needs a moment."""

TRIM = Retry(5.0)
"""From a failed trim of a log to its repetition (C8): the log is only longer meanwhile."""

RESPONSES = Retry(0.1)
"""From a read of answers that failed to the next read: requests wait for the answers."""

REQUEST = Retry(1.0, 2.0, 8.0)
"""From a request to its repetition (C1b): a rebalance of workers takes seconds, and thousands of
clients must not ask a new owner each second. The first wait is the option `resend_s`."""

ATTACH = Retry(0.5)
"""From a refused claim, or an answered question, of a group's member to the next one (G4): a
rebalance of the group is on its way for about as long."""

TOPIC_LOOK = Retry(1.0)
"""From a client's look at its topics that failed to the next look."""

ABSENT_TOPIC = Retry(1.0)
"""Between two looks of a controller at a topic that is missing, or was created again meanwhile."""

REJOINED = Retry(0.2)
"""From the removal of a group's members to the next one, since they join again: the group is moved
between the two."""

POLICIES = Retry(5.0)
"""Between two looks at the policies of topics that transactions write to (C18)."""

POLICIES_AT_START = Retry(0.1)
"""Between two questions at the start of a worker whether its owners know these topics."""

POLICY_QUESTION = Retry(0.05)
"""Between two questions of one look at policies: requests have their turn."""

FAIL_OVER = Retry(0.5)
"""Between two questions whether a group has arrived at its new cluster."""

TOKEN = Retry(1.0)
"""From a failed fetch of a token to the next one: connections ask more often."""

RAW_CALL = Retry(0.1)
"""Between two attempts of one call on a raw connection: mostly a leader that moves."""

SHOWN = Retry(0.05)
"""Between two questions for what a broker does not show yet, such as a new topic; and between two
looks for room in a producer's queue."""

UNDECIDED = Retry(1.0, 2.0, 12.0)
"""From a request for a snapshot to the next one for the same record (D2), in units of the option
`ask_after_s`: a snapshot writer that does not answer is not helped by more requests."""

POSITION_SNAPSHOT = Retry(1.0, 2.0, 4.0)
"""From an attempt at a position snapshot that timed out to the next one (I1), in units of the
time-out."""

LINE = Retry(1.0, 2.0, 300.0)
"""From a failure of a direct line to its next attempt (J4): where lines are filtered, they stay so
for hours, and the topic serves."""
