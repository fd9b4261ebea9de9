"""Handlers of FastStream in transactions: `stilltide.faststream`."""
