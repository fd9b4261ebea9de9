"""What a handler of FastStream publishes, and its message's acknowledgement, in one transaction."""

from stilltide.pipeline.extras import require_module

require_module("`stilltide.faststream`", "faststream")

from stilltide.pipeline.faststream.transactions import Transactions  # noqa: E402 - needs the above

__all__ = ["Transactions"]
