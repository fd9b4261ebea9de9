"""The progress directory of `write`: which batches were written to a topic, and by which decision.

*Source*: docs/protocols L9.

*Invariants*: a file is created once, with its whole content, and never changed or removed. Files of
attempts hold tokens, which are secrets.
"""

import json
from typing import Any, NamedTuple
from urllib.parse import quote

from stilltide.pipeline.core.coordinator.batch_write import BatchFiles
from stilltide.pipeline.errors import BatchError, ConfigError
from stilltide.pipeline.jobs.tables.files import TableFiles
from stilltide.pipeline.jobs.tables.table import table_errors

BatchId = int | str

_TARGET, _END = "target.json", "end.json"
_ATTEMPT, _DECISION = ".attempt.json", ".decision.json"
_VERSION = 1
_ID_CHARS_MAX = 150


class BatchSource(NamedTuple):
    """What a batch of a streaming query is told by from another one of its number.

    Attributes:
        query: Spark's id of the query; empty: no query writes the batch.
        offsets: digest of what the checkpoint says that the batch holds; empty: not known.
    """

    query: str = ""
    offsets: str = ""


class BatchFolder:
    """The folder of one batch.

    Args:
        files: the progress directory.
        batch_id: the batch; None: the only one of the directory.
        source: where a streaming query has the batch from.

    Raises:
        ConfigError: it is no number from 0 on, and no text of 1 to 150 letters.
    """

    def __init__(self, files: TableFiles, batch_id: BatchId | None, source: BatchSource) -> None:
        self._files = files
        self._source = {name: text for name, text in source._asdict().items() if text}
        self._folder = _folder_of(batch_id)
        self._is_single = batch_id is None

    def check_open(self) -> None:
        """Passes unless the directory is for a single batch, which has ended (`BatchError`)."""
        if self._is_single and self.read().ended:
            raise BatchError(
                f"the progress {self._files.uri} holds its batch already",
                detail="a directory without `batch_id` is for a single batch",
                hint="give each batch a `batch_id`, or a directory of its own",
            )

    def check_target(self, cluster_id: str, topic: str, topic_id: bytes) -> None:
        """Passes the topic of the directory, which is that of its first batch.

        Raises:
            BatchError: the directory is of another topic, or of one that was created again.
            TableError: the directory cannot be written to.
        """
        target = {"cluster": cluster_id, "topic": topic, "topic_id": topic_id.hex()}
        with table_errors(self._files.uri):
            if self._create(_TARGET, target):
                return
        known = self._read(_TARGET)
        if known != target:
            raise BatchError(
                f"the progress {self._files.uri} is of another topic",
                detail=f"it is of {known}, and the batch goes to {target}",
                hint="name the topic and cluster of before, or another directory",
            )

    def read(self) -> BatchFiles:
        """What is stored of the batch.

        Raises:
            BatchError: a file is damaged.
            TableError: the directory cannot be read.
        """
        with table_errors(self._files.uri):
            names = self._files.names(self._folder)
        contents = {
            name: self._read(f"{self._folder}/{name}") for name in names if not name.startswith(".")
        }
        attempts = {_number(name): contents[name] for name in contents if name.endswith(_ATTEMPT)}
        tokens = {number: attempt["token"] for number, attempt in attempts.items()}
        decisions = {
            _number(name): contents[name]["commit"] for name in contents if name.endswith(_DECISION)
        }
        return BatchFiles(
            tokens,
            decisions,
            _END in contents,
            frozenset(number for number, it in attempts.items() if self._is_of_another(it)),
        )

    def keep_token(self, attempt: int, token: str) -> bool:
        """Creates the file of an attempt; False if there is one already."""
        body = {"token": token, **self._source}
        with table_errors(self._files.uri):
            return self._create(f"{self._folder}/{attempt:05}{_ATTEMPT}", body)

    def keep_decision(self, attempt: int, *, committed: bool) -> bool:
        """Creates the decision about an attempt, unless there is one; returns what stands."""
        name = f"{self._folder}/{attempt:05}{_DECISION}"
        with table_errors(self._files.uri):
            if self._create(name, {"commit": committed}):
                return committed
        return bool(self._read(name)["commit"])

    def keep_end(self, attempt: int) -> None:
        """Stores that the batch has ended."""
        with table_errors(self._files.uri):
            self._create(f"{self._folder}/{_END}", {"attempt": attempt})

    def _is_of_another(self, attempt: dict[str, Any]) -> bool:
        """Whether the attempt has other records; what one of both does not know says nothing."""
        return any(attempt.get(name, text) != text for name, text in self._source.items())

    def _create(self, name: str, body: dict[str, Any]) -> bool:
        return self._files.create(name, json.dumps({"version": _VERSION, **body}))

    def _read(self, name: str) -> dict[str, Any]:
        try:
            body = json.loads(self._files.read(name))
            if body.pop("version") != _VERSION:
                raise BatchError(
                    f"a later version wrote {self._files.uri}/{name}",
                    hint="upgrade Stilltide",
                )
            _check(name, body)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BatchError(
                f"{self._files.uri}/{name} does not hold what is known of a batch",
                detail=str(error),
                hint="restore it from a copy: without it nobody knows what was written",
            ) from error
        return body


def _check(name: str, body: dict[str, Any]) -> None:
    """Raises ValueError for a file that lacks what its name promises."""
    wanted: tuple[str, type] | None = None
    if name.endswith(_ATTEMPT):
        wanted = "token", str
    elif name.endswith(_DECISION):
        wanted = "commit", bool
    if wanted is not None and type(body.get(wanted[0])) is not wanted[1]:
        raise ValueError(f"it has no `{wanted[0]}`")


def _number(name: str) -> int:
    return int(name.partition(".")[0])


def _folder_of(batch_id: object) -> str:
    if batch_id is None:
        return "batch"
    if type(batch_id) is int and batch_id >= 0:
        return f"batches/{batch_id:010}"
    if isinstance(batch_id, str) and 1 <= len(quoted := quote(batch_id, safe="")) <= _ID_CHARS_MAX:
        return f"batches/id-{quoted}"
    raise ConfigError(
        f"`batch_id` is {batch_id!r:.80}",
        hint=f"a number from 0 on, or a text of 1 to {_ID_CHARS_MAX} letters",
    )
