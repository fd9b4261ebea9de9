"""Asyncio loops that feed a machine, run its effects and re-arm its deadline."""
