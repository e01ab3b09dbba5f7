"""Pieces of PromQL that recording rules and alerts are made of; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

SERVICE_LABELS: Final = ("namespace", "inference_service")
"""Labels of every recorded series: the service that it is about."""

BY_SERVICE: Final = f"by ({', '.join(SERVICE_LABELS)})"
ON_SERVICE: Final = f"on ({', '.join(SERVICE_LABELS)})"


@dataclass(frozen=True, slots=True)
class Selector:
    """The labels by which the series of one service are found."""

    namespace: str
    service: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.service}"

    def of_replicas(self, series: str, **labels: str) -> str:
        """Return the selector of a series of its replicas, or of one that is recorded for it.

        A label whose value starts with ~ is matched as a regular expression.
        """
        own = {"namespace": self.namespace, "inference_service": self.service}
        return f"{series}{{{_matchers({**own, **labels})}}}"

    def of_operator(self, series: str) -> str:
        """Return the selector of a series that the operator has of it."""
        return f"{series}{{{_matchers({'namespace': self.namespace, 'name': self.service})}}}"


def _matchers(labels: Mapping[str, str]) -> str:
    return ", ".join(
        f'{name}=~"{value[1:]}"' if value.startswith("~") else f'{name}="{value}"'
        for name, value in labels.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRule:
    """A series that Prometheus records."""

    record: str
    """Its name, as level:metric:operations."""

    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """The rule as Prometheus reads it."""
        labels = {"labels": dict(self.labels)} if self.labels else {}
        return {"record": self.record, "expr": self.expr, **labels}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One condition of an alert; both sides have values while there is no alert."""

    left: str
    operator: Literal[">", ">=", "=="]
    right: str

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert: it fires while all conditions hold, for `lasts` at least."""

    name: str
    conditions: tuple[Comparison, ...]
    severity: Literal["critical", "warning"]
    summary: str
    description: str
    lasts: str = ""
    """Time for which the conditions hold before it fires, such as 10m; empty: at once."""

    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def expr(self) -> str:
        """The alert's expression."""
        if len(self.conditions) == 1:
            return str(self.conditions[0])
        return f"\nand {ON_SERVICE} ".join(f"({condition})" for condition in self.conditions)

    def manifest(self, runbook: str) -> dict[str, Any]:
        """The alert as Prometheus reads it; `runbook` is the address of the page about alerts."""
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": self.lasts} if self.lasts else {}),
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{runbook}#{self.name.lower()}",
            },
        }
