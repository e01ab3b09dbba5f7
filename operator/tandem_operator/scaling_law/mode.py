"""The owner of the number of replicas in each mode, and the hand-over between modes; pure.

`spec.scaling.replicas` is written by people, `kubectl scale`, an HPA or KEDA, `desiredReplicas` of
the status by the operator alone. One rule reads both, so a number has one reader whatever the mode.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tandem_operator.scaling_law.decision import Decision
from tandem_serve.api.scaling import ScalingMode, ScalingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusScaling:
    """`status.scaling`, as far as it says how many replicas there are."""

    mode: ScalingMode | None = None
    """The mode that the number is of; None: there was none yet. It stays Auto until the number that
    the autoscaler left is in the spec."""

    desired_replicas: int | None = None
    """The number in force, in every mode; None: there was none yet."""

    superseded_replicas: int | None = None
    """`spec.scaling.replicas` that the autoscaler has moved away from. It asks for nothing until
    another value is written."""

    recommended_replicas: int | None = None
    """The number that the autoscaler would take, in mode Recommend."""

    @classmethod
    def read(cls, status: Mapping[str, Any]) -> Self:
        """Return `scaling` of a service's status."""
        document = status.get("scaling") or {}
        return cls(
            mode=document.get("mode"),
            desired_replicas=document.get("desiredReplicas"),
            superseded_replicas=document.get("supersededReplicas"),
            recommended_replicas=document.get("recommendedReplicas"),
        )

    def document(self) -> dict[str, int | str]:
        """Return these fields as they stand in `scaling` of a status."""
        fields: dict[str, int | str | None] = {
            "mode": self.mode,
            "desiredReplicas": self.desired_replicas,
            "supersededReplicas": self.superseded_replicas,
            "recommendedReplicas": self.recommended_replicas,
        }
        return {name: value for name, value in fields.items() if value is not None}


def desired_replicas(spec: ScalingSpec, status: StatusScaling) -> int:
    """Return the number of replicas in force."""
    if status.desired_replicas is None or is_request(spec, status):
        # A number in a new manifest is the autoscaler's first one.
        return spec.initial_replicas
    if spec.mode != "Auto" and spec.replicas is None and status.mode != "Auto":
        return spec.initial_replicas
    return spec.bounded(status.desired_replicas)


def is_request(spec: ScalingSpec, status: StatusScaling) -> bool:
    """Return True when `spec.scaling.replicas` decides.

    In mode Auto it never does. Outside it a number that the autoscaler has superseded does not:
    else leaving Auto would bring back the number from before it, under the load of now.
    """
    if spec.mode == "Auto" or spec.replicas is None:
        return False
    return spec.replicas != status.superseded_replicas


def replicas_to_write(spec: ScalingSpec, status: StatusScaling) -> int | None:
    """Return the number to write to the scale subresource, once; None: none.

    After mode Auto, so that the number that it left is asked for by hand from then on. In mode
    External also where there is none: without one the API server refuses to read the subresource,
    and no HPA or KEDA begins.
    """
    if spec.mode == "Auto" or is_request(spec, status):
        return None
    if spec.replicas is None and spec.mode != "External" and status.mode != "Auto":
        return None
    in_force = desired_replicas(spec, status)
    return None if spec.replicas == in_force else in_force


def next_status(
    spec: ScalingSpec, status: StatusScaling, decision: Decision | None = None
) -> StatusScaling:
    """Return the status after this moment; `decision` counts in modes Auto and Recommend.

    The number in force is written down in every mode, so that the next mode starts from it.
    """
    in_force = desired_replicas(spec, status)
    if spec.mode == "Auto":
        desired = in_force if decision is None else spec.bounded(decision.desired)
        return StatusScaling(
            mode="Auto", desired_replicas=desired, superseded_replicas=spec.replicas
        )
    advises = spec.mode == "Recommend" and decision is not None
    hands_over = status.mode == "Auto" and replicas_to_write(spec, status) is not None
    return StatusScaling(
        mode="Auto" if hands_over else spec.mode,
        desired_replicas=in_force,
        superseded_replicas=None if is_request(spec, status) else _superseded(spec, status),
        recommended_replicas=decision.desired if advises and decision else None,
    )


def _superseded(spec: ScalingSpec, status: StatusScaling) -> int | None:
    """Return the superseded number for as long as the spec still has it."""
    return status.superseded_replicas if spec.replicas is not None else None
