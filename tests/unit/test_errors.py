"""The module `stilltide.errors`."""

import inspect

import stilltide
import stilltide.errors
from stilltide.connectors import errors as of_connectors
from stilltide.connectors.local import errors as of_local
from stilltide.pipeline import errors as of_pipeline
from stilltide.schemas import errors as of_schemas
from stilltide.schemas.errors import StilltideError


def test_every_error_is_importable_from_one_module():
    """All classes of the four modules of errors, and all errors of `stilltide` itself."""
    defined = {
        name
        for module in (of_connectors, of_local, of_pipeline, of_schemas)
        for name, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, StilltideError)
    }
    assert set(stilltide.errors.__all__) == defined
    assert {name for name in stilltide.__all__ if name.endswith("Error")} <= defined
    assert sorted(stilltide.errors.__all__) == stilltide.errors.__all__
