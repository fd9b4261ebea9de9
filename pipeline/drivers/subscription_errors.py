"""What a subscription can fail with, besides what its topics and its cluster fail with.

*Source*: system.md, What bad input gets.
"""

from pipeline.errors import PipelineError


class UnavailableError(PipelineError):
    """The cluster stayed away for longer than the caller was willing to wait."""


class MissingTopicError(PipelineError):
    """A topic that is read from does not exist."""


class UndecidedError(PipelineError):
    """Reading stands at a record whose transaction has no known outcome (D2)."""


class NotAssignedError(PipelineError):
    """The group has not given this member a partition that it was told to read."""
