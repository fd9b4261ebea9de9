"""The name under which a worker is a member of the workers' group, which says the worker's version.

*Source*: docs/operating.md, Status. Every tool that describes a consumer group shows the name.
"""

_PREFIX = "stilltide-worker-"


def worker_client_id(version: str) -> str:
    """The client id of a worker of this version of Stilltide."""
    return _PREFIX + version


def worker_version(client_id: str) -> str | None:
    """The version in a client id; None: the member is no worker."""
    found = client_id.removeprefix(_PREFIX)
    return found if found != client_id and found else None
