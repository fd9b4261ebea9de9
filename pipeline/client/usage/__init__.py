"""Finds mistakes of programs at the call: wrong types, a missing `await`, another event loop."""
