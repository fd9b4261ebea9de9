"""The pages that are made when the site is built: the reference, from the code, and notebooks."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from tests.site.notebooks import NOTEBOOKS
from tests.site.notebooks import page as notebook_page
from tests.site.reference import (
    alerts,
    api,
    commands,
    exit_codes,
    formats,
    rights,
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
        "reference/rights.md": rights.page,
        "reference/exit-codes.md": exit_codes.page,
        **{f"notebooks/{path.stem}.md": partial(notebook_page, path) for path in NOTEBOOKS},
    }
)
"""What makes the text of each page, by the page's place on the site."""
