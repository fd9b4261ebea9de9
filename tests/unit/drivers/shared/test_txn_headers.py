"""The transactions of records, by their headers (D1, D3)."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.read_committed.machine import MALFORMED
from stilltide.pipeline.drivers.shared.txn_headers import txns_of_headers
from stilltide.schemas.headers import TXN, Headers

TXN_A, TXN_B = b"a" * 16, b"b" * 16
CASES: list[tuple[Headers | None, bytes | None]] = [
    (None, None),
    ([], None),
    ([("other", b"x" * 16)], None),
    ([("other", None)], None),
    ([(TXN, TXN_A)], TXN_A),
    ([(TXN, TXN_B)], TXN_B),
    ([("other", b"x"), (TXN, TXN_A)], TXN_A),
    ([(TXN, None)], MALFORMED),
    ([(TXN, b"")], MALFORMED),
    ([(TXN, b"a" * 15)], MALFORMED),
    ([(TXN, b"a" * 17)], MALFORMED),
    ([(TXN, TXN_A), (TXN, TXN_A)], MALFORMED),
]


@pytest.mark.parametrize(
    "cases", [[one] for one in CASES] + [[*it] for it in product(CASES, CASES)]
)
def test_what_a_record_has_does_not_depend_on_those_beside_it(
    cases: list[tuple[Headers | None, bytes | None]],
):
    """Each alone, and each pair: the common case is decided for all records at once."""
    assert txns_of_headers([headers for headers, _ in cases]) == [txn for _, txn in cases]


@given(st.lists(st.sampled_from(CASES)))
def test_any_records(cases: list[tuple[Headers | None, bytes | None]]):
    """However many."""
    assert txns_of_headers([headers for headers, _ in cases]) == [txn for _, txn in cases]
