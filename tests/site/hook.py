"""The events of MkDocs: what is on the site besides the pages of `docs`.

*Invariants*: a link of a page leads to the same file on the site as in the repository; nothing is
written below `docs`.
"""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.site.reference import PAGES
from tests.site.reference.text import with_rules_in_html
from tests.site.repository import DOCS, ROOT, linked, moved, nested, site_path
from tests.tidy.markdown import links

TOP = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages at the top of the repository that are pages of the site, linked to or not."""

_SEARCH = '<div class="md-search" data-md-component="search" role="dialog"'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated reference, the pages at the top, and the files that pages link to."""
    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    origins = {site_path(f"{DOCS}/{one.src_uri}"): f"{DOCS}/{one.src_uri}" for one in files}
    waiting = [*TOP, *(path for path in origins.values() if (ROOT / path).suffix == ".md")]
    added = set(origins.values())
    while waiting:
        path = waiting.pop()
        if path not in added:
            added.add(path)
            files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md") and (ROOT / path).is_file():
            waiting += [goal for goal in _files_linked(path) if goal not in added]
    return files


def _files_linked(path: str) -> list[str]:
    goals = (linked(path, target) for _, target in links(ROOT / path))
    return [goal for goal in goals if goal and (ROOT / goal).is_file()]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text of a page of the repository with the links of the site."""
    path = origin(page.file)
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]  # all of its width, for one screen
    return markdown if path is None else nested(moved(markdown, path))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The reference of the package with links from the rules that its docstrings cite."""
    return with_rules_in_html(html) if page.file.src_uri == "reference/api.md" else html


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The page with a name for the dialog of the search, which the theme gives none."""
    assert _SEARCH in output, "the theme has changed"
    return output.replace(_SEARCH, f'{_SEARCH} aria-label="Search"')


def origin(file: File) -> str | None:
    """The path in the repository of a page's file; None for a generated page."""
    if file.src_uri in PAGES:
        return None
    assert file.abs_src_path is not None
    return str(ROOT.joinpath(file.abs_src_path).relative_to(ROOT))
