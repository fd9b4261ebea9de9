from tests.site.repository import linked, moved, nested, site_path


def test_a_file_of_the_repository_has_one_place_on_the_site():
    """Pages of docs keep their place; pages at the top and other files have folders."""
    assert site_path("docs/protocols/README.md") == "protocols/README.md"
    assert site_path("ARCHITECTURE.md") == "project/architecture.md"
    assert site_path("deploy/prometheus/alerts.yml") == "files/deploy/prometheus/alerts.yml"


def test_links_lead_to_the_same_file_on_the_site():
    """A link to a page, a file, an anchor, another site or a picture keeps its meaning."""
    text = (
        "[a](../README.md#write) [b](operating.md) ![c](img/audit.png) [`d`](../Makefile)\n"
        "[e](#here) [f](https://example.com/README.md)"
    )
    assert moved(text, "docs/start.md") == (
        "[a](project/readme.md#write) [b](operating.md) ![c](img/audit.png) [`d`](files/Makefile)\n"
        "[e](#here) [f](https://example.com/README.md)"
    )
    assert moved("[s](docs/start.md)", "README.md") == "[s](../start.md)"


def test_a_link_that_is_called_by_its_file_is_called_by_its_heading():
    """A reader of the site sees titles of pages and sections, not names of files."""
    text = "[operating.md](operating.md#growing) [start.md](start.md) [sizes](sizing.md)"
    assert moved(text, "docs/faq.md") == (
        "[Operating: Growing](operating.md#growing) [Start](start.md) [sizes](sizing.md)"
    )


def test_a_link_to_a_folder_becomes_its_text():
    """The site lists no folders."""
    assert moved("the folder [deploy](../deploy)", "docs/start.md") == "the folder deploy"


def test_code_keeps_what_looks_like_a_link():
    """Neither a fence nor code within a line is rewritten."""
    text = "`[a](../README.md)`\n\n```text\n[a](../README.md)\n```\n"
    assert moved(text, "docs/start.md") == text


def test_other_places_are_no_files():
    """Links to other sites and within a page lead to no file of the repository."""
    assert linked("docs/a.md", "https://example.com") is None
    assert linked("docs/a.md", "#b") is None
    assert linked("docs/b/a.md", "../../README.md#c") == "README.md"


def test_code_in_a_list_is_indented_by_four():
    """What stands below an item with two blanks belongs to the item on the site, too."""
    assert (
        nested("- a\n\n  ```sh\n  b\n\n  ```\n\nc\n") == "- a\n\n    ```sh\n    b\n\n    ```\n\nc\n"
    )
    assert nested("```sh\n  b\n```\n") == "```sh\n  b\n```\n"
