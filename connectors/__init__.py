"""Everything that talks to something outside the process; imports schemas and client libraries."""

if __name__ != "stilltide.connectors":
    raise ImportError(
        f"{__name__!r} is a folder of Stilltide: write `import stilltide.connectors` instead"
    )
