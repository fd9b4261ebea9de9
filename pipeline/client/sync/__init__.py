"""The client library for programs without an event loop: `stilltide.sync`."""
