"""The root of every error Stilltide raises, and the decode errors of the wire formats.

*Source*: architecture.md, Habits of the code: a primary line, then detail and hint, with topic,
partition and offset as attributes.
"""


class StilltideError(Exception):
    """A failure the caller can read: `primary` says what, `detail` why, `hint` the next step.

    Topic, partition and offset are set where the failure concerns one; `str()` joins all of it.
    """

    def __init__(
        self,
        primary: str,
        *,
        detail: str = "",
        hint: str = "",
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(primary)
        self.primary = primary
        self.detail = detail
        self.hint = hint
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def at(self, topic: str, partition: int, offset: int) -> "StilltideError":
        """Says where the record that caused it lies; returns itself, to be raised."""
        self.topic, self.partition, self.offset = topic, partition, offset
        return self

    @property
    def place(self) -> str:
        """`topic/partition@offset` as far as known, else empty."""
        if self.topic is None:
            return ""
        place = self.topic
        if self.partition is not None:
            place += f"/{self.partition}"
        if self.offset is not None:
            place += f"@{self.offset}"
        return place

    def __str__(self) -> str:
        text = f"{self.place}: {self.primary}" if self.place else self.primary
        if self.detail:
            text += f"\n  detail: {self.detail}"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text


class DecodeError(StilltideError):
    """Bytes that are not what their topic holds."""


class UnknownVersionError(DecodeError):
    """A frame of a version this program does not know; never guessed at (A)."""


class OversizeError(DecodeError):
    """More bytes or records than any writer of this format may produce."""


class MalformedHeaderError(DecodeError):
    """A `txn` header that is not exactly one value of 16 bytes (D)."""
