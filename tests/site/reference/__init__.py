"""The pages of the reference, made from the code when the site is built."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.site.reference import (
    alerts,
    api,
    commands,
    exit_codes,
    formats,
    settings,
    topics,
)

PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "reference/settings.md": settings.page,
        "reference/commands.md": commands.page,
        "reference/api.md": api.page,
        "reference/topics.md": topics.page,
        "reference/formats.md": formats.page,
        "reference/alerts.md": alerts.page,
        "reference/exit-codes.md": exit_codes.page,
    }
)
"""What makes the text of each page, by the page's place on the site."""
