"""How a reader trades delay for throughput.

*Source*: connectors.ports, `Connector.reader`.
"""

from enum import Enum


class Fetching(Enum):
    """The way in which a reader fetches.

    TAILING: returns records at once, and `EndReached` within 0.2 s.
    SCANNING: returns `EndReached` at once, too, and fetches 512 KiB at a time, since a scan may
        need few records; waiting at a log's end costs reader and broker much more.
    IN_BULK: returns records up to 0.1 s later, many at a time, at much less cost.

    Readers of one kind may share a client, except those that scan.
    """

    TAILING = "tailing"
    SCANNING = "scanning"
    IN_BULK = "in bulk"
