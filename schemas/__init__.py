"""Values and wire formats shared between processes; imports the stdlib and protobuf only."""

if __name__ != "stilltide.schemas":
    raise ImportError(
        f"{__name__!r} is a folder of Stilltide: write `import stilltide.schemas` instead"
    )
