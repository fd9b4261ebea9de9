"""The demo: events become transactions, a worker crashes, and three views must agree."""
