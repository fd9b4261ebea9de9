"""How a reader trades delay for work.

*Source*: connectors.ports, `Connector.reader`.
"""

from enum import Enum


class Fetching(Enum):
    """What a reader is made for.

    TAILING: gets records at once, and hears of an end within two tenths of a second.
    SCANNING: hears of an end at once, too, and fetches half a megabyte at a time, for
        it may want little; to stay at an end costs the broker and it much more.
    IN_BULK: gets records up to a tenth of a second later, many at a time, at much less cost.

    All but those that scan may share one client with others of their kind.
    """

    TAILING = "tailing"
    SCANNING = "scanning"
    IN_BULK = "in bulk"
