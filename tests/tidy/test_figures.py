"""The pictures of the documentation are those that the sources give."""

import pytest

from tests.figures import FIGURES, FOLDER
from tests.figures.imports import LAYERS, layer_of


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_is_what_its_source_draws(name: str):
    """`make figures` was run after the last change of a drawing, or of what imports what."""
    assert FIGURES[name]() == (FOLDER / name).read_text(), "run `make figures`"


def test_a_module_belongs_to_the_layer_of_its_folder():
    """A module lies in one layer; a module that no layer names is an error."""
    assert LAYERS[layer_of("pipeline/core/links/link") or 0].title == "core"
    assert LAYERS[layer_of("pipeline/errors") or 0].title == "for all layers of pipeline"
    assert layer_of("pipeline") is None
    with pytest.raises(LookupError, match="in no layer"):
        layer_of("pipeline/nowhere/module")
