"""The setting `deciders`."""

import pytest

from stilltide.pipeline.config.deciders import parse_deciders
from stilltide.pipeline.errors import ConfigError


def test_names_and_addresses():
    """An address may hold any character but a space."""
    text = "orders-db=postgresql://u:p=,@h/orders?host=/run  b=sqlite:////b.db"
    assert parse_deciders(text) == {
        "orders-db": "postgresql://u:p=,@h/orders?host=/run",
        "b": "sqlite:////b.db",
    }
    assert parse_deciders(" ") == {}


@pytest.mark.parametrize(
    "text", ["postgresql://secret@h/d", "a=secret", "=sqlite://secret", "a=b://secret a=b://c"]
)
def test_errors_show_no_address(text: str):
    """An address may hold a password."""
    with pytest.raises(ConfigError) as caught:
        parse_deciders(text)
    assert "secret" not in str(caught.value)
