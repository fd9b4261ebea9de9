"""Stilltide's own code: pure core, drivers, agents, client library, jobs and CLI."""

if __name__ != "stilltide.pipeline":
    raise ImportError(
        f"{__name__!r} is a folder of Stilltide: write `import stilltide.pipeline` instead"
    )
