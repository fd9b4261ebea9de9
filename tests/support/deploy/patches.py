"""JSON patches (RFC 6902), as far as deploy/kubernetes uses them."""

from typing import Any


def apply_patch(document: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    """Applies operations in order, in place.

    Raises:
        ValueError: an operation is not `add`, or has unknown keys.
        LookupError: the place of a value does not exist.
    """
    for operation in operations:
        if operation.get("op") != "add" or set(operation) != {"op", "path", "value"}:
            raise ValueError(f"{operation} is not known here")
        *place, last = operation["path"].removeprefix("/").split("/")
        found: Any = document
        for key in place:
            found = found[int(key)] if isinstance(found, list) else found[key]
        if isinstance(found, list):
            found.insert(len(found) if last == "-" else int(last), operation["value"])
        else:
            found[last] = operation["value"]
