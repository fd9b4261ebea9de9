"""Transaction metadata as a replicated state machine over txn-log, and the client's side of it."""
