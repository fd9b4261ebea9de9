"""Transaction metadata as a replicated state machine over txn-log, and a client's pool (C)."""
