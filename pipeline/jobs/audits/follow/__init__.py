"""Audits that go on: each run checks what came since the last one, and the totals stay true."""
