"""The demo: events in, transactions, crash, three counts that must agree."""
