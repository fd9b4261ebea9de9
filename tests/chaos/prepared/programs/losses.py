"""Rules switched off in every process of a campaign: its judge has to notice each of them."""

from typing import Any

from stilltide.connectors.databases.table import DatabaseTable
from stilltide.pipeline.drivers.coordinator.owner import CoordinatorOwner
from stilltide.schemas.coordinator.transactions import Prepare
from stilltide.schemas.service.envelopes import Done


def break_rule(rule: str) -> None:
    """Switches a rule off in this process; an empty name switches nothing off."""
    if rule:
        LOSSES[rule]()


def _no_prepare() -> None:
    """A coordinator answers `Prepare`, and has no record of it in its log."""
    log_request = CoordinatorOwner.log_request

    def answered(owner: Any, data: bytes, request: Any) -> None:
        if isinstance(request.body, Prepare):
            owner.answer_after_noop(request, Done)
        else:
            log_request(owner, data, request)

    CoordinatorOwner.log_request = answered  # type: ignore[method-assign]


def _no_row() -> None:
    """A resolver aborts without a look at the row."""

    async def aborted(*_: Any) -> bool:
        return False

    DatabaseTable.decide = aborted  # type: ignore[method-assign]


LOSSES = {"L1": _no_prepare, "L4": _no_row}
