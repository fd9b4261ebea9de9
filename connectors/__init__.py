"""Access to what is outside the process: Kafka, Spark, the wall clock, local brokers."""

if __name__ != "stilltide.connectors":
    raise ImportError(
        f"{__name__!r} is a folder of Stilltide: write `import stilltide.connectors` instead"
    )
