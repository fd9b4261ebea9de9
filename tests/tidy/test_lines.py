"""`make lines` counts code and arrows, and neither text nor blanks."""

from tests.figures.lines import code_lines, imported_modules


def test_docstrings_imports_and_blanks_are_no_code():
    """Comments, and strings that are values, are code."""
    text = '''"""What it is."""

import os
from stilltide.schemas import (
    topics,
)

NAME = """
text
"""
"""What a name is."""


def f():
    """Do."""
    # Why.
    return os, topics
'''
    assert code_lines(text) == 6


def test_modules_are_found_behind_each_form_of_import():
    """An import of names, of a module from its package, and of a dotted module."""
    text = (
        "import os\nimport stilltide.schemas.topics\nfrom stilltide.connectors import ports\n"
        "from stilltide.pipeline.errors import StilltideError\n"
    )
    assert {"schemas.topics", "connectors.ports", "pipeline.errors"} <= set(imported_modules(text))
