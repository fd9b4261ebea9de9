"""Everything whose bytes or identity crosses a process; imports the stdlib and protobuf only."""

if __name__ != "stilltide.schemas":
    raise ImportError(
        f"{__name__!r} is a folder of Stilltide: write `import stilltide.schemas` instead"
    )
