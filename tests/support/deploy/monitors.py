"""The resources of the Prometheus operator that are used, as strict models.

They are no part of the API of Kubernetes, so its schemas do not have them. The models hold the
fields that deploy/kubernetes uses; another field is an error.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Metadata(_Strict):
    """Name and labels."""

    name: str
    namespace: str | None = None
    labels: dict[str, str]


class Selector(_Strict):
    """Labels of the services or pods that are scraped."""

    matchLabels: dict[str, str]  # noqa: N815 - the operator's name


class Relabeling(_Strict):
    """A label that each sample gets."""

    sourceLabels: list[str] | None = None  # noqa: N815 - as above
    targetLabel: str  # noqa: N815 - as above
    replacement: str | None = None


class Endpoint(_Strict):
    """A port that is scraped."""

    port: str
    path: str
    interval: str
    honorLabels: bool  # noqa: N815 - as above
    relabelings: list[Relabeling]


class ServiceSpec(_Strict):
    """What a ServiceMonitor says."""

    selector: Selector
    endpoints: list[Endpoint]


class PodSpec(_Strict):
    """What a PodMonitor says."""

    selector: Selector
    podMetricsEndpoints: list[Endpoint]  # noqa: N815 - as above


class ServiceMonitor(_Strict):
    """Scrapes the pods behind services."""

    apiVersion: Literal["monitoring.coreos.com/v1"]  # noqa: N815 - as above
    kind: Literal["ServiceMonitor"]
    metadata: Metadata
    spec: ServiceSpec


class PodMonitor(_Strict):
    """Scrapes pods."""

    apiVersion: Literal["monitoring.coreos.com/v1"]  # noqa: N815 - as above
    kind: Literal["PodMonitor"]
    metadata: Metadata
    spec: PodSpec


_MODELS = {"ServiceMonitor": ServiceMonitor, "PodMonitor": PodMonitor}


def is_monitor(document: dict[str, Any]) -> bool:
    """Whether a document belongs to the Prometheus operator."""
    return str(document["apiVersion"]).startswith("monitoring.coreos.com/")


def check_monitor(document: dict[str, Any]) -> ServiceMonitor | PodMonitor:
    """The document as a model.

    Raises:
        pydantic.ValidationError: a field is unknown, missing or of another type.
    """
    return _MODELS[document["kind"]].model_validate(document)
