"""Short words for what the status shows, shared by the screen and the console."""

from types import MappingProxyType

from stilltide.pipeline.core.groups.group import Standing

STANDING_WORDS = MappingProxyType(
    {
        Standing.AT_THE_PREFIX: "in sync",
        Standing.NOTHING_CLAIMED: "nothing read",
        Standing.MOVING: "moving",
        Standing.ACTIVE: "reads here",
        Standing.RESET_BY_HAND: "reset by hand",
        Standing.BEYOND_THE_END: "beyond the end",
        Standing.BEYOND_WHAT_IS_DECIDED: "beyond the decided end",
        Standing.RESET_REFUSED: "reset refused",
        Standing.PUBLISHED_LATELY: "just published",
    }
)
"""Each standing of a group in two or three words; JSON has the whole sentence."""
