"""One decision about the number of replicas, with its reason and its inputs; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tandem_operator.scaling_law.hindsight import PastLoad, Rule


class DecisionReason(StrEnum):
    """The reason of a decision, one word in CamelCase."""

    NO_TRAFFIC = "NoTraffic"
    WITHIN_TARGETS = "WithinTargets"
    METRICS_MISSING = "MetricsMissing"
    METRICS_STALE = "MetricsStale"
    METRICS_INVALID = "MetricsInvalid"
    METRICS_DISAGREE = "MetricsDisagree"
    METRICS_UNREACHABLE = "MetricsUnreachable"
    TOO_FEW_SAMPLES = "TooFewSamples"
    REPLICAS_STARTING = "ReplicasStarting"
    REPLICAS_LOST = "ReplicasLost"
    """Replicas carry nothing, too many to be replaced: the cause is none of theirs."""
    STABILIZING = "Stabilizing"
    """Another number is recommended, but not for all of the window yet."""
    AT_MAXIMUM = "AtMaximum"
    AT_MINIMUM = "AtMinimum"
    SLO_INFEASIBLE = "SLOInfeasible"
    CAPACITY_UNAVAILABLE = "CapacityUnavailable"
    """The nodes can hold no further replica."""

    TTFT_ABOVE_TARGET = "TTFTAboveTarget"
    TPOT_ABOVE_TARGET = "TPOTAboveTarget"
    QUEUE_AGE_ABOVE_TARGET = "QueueAgeAboveTarget"
    REQUESTS_REFUSED = "RequestsRefused"
    """Replicas refuse requests, since all of their slots are taken."""
    PREDICTED_OVERLOAD = "PredictedOverload"
    REQUEST_AT_ZERO = "RequestAtZero"
    """A request was refused because there is no replica."""
    UNDERUSED = "Underused"
    BOUNDS_CHANGED = "BoundsChanged"
    """The number is outside minReplicas and maxReplicas as they are now."""

    @property
    def is_hold(self) -> bool:
        """True for a reason that leaves the number as it is."""
        return self not in _SCALES


_SCALES = frozenset(
    {
        DecisionReason.TTFT_ABOVE_TARGET,
        DecisionReason.TPOT_ABOVE_TARGET,
        DecisionReason.QUEUE_AGE_ABOVE_TARGET,
        DecisionReason.REQUESTS_REFUSED,
        DecisionReason.PREDICTED_OVERLOAD,
        DecisionReason.REQUEST_AT_ZERO,
        DecisionReason.UNDERUSED,
        DecisionReason.BOUNDS_CHANGED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The number of replicas from now on, and its reason."""

    desired: int
    reason: DecisionReason
    recommended: int
    """The number by the measurements alone, before windows, steps and limits."""

    load: PastLoad | None = None
    """The load that it was made for; None: unknown, or not to be trusted."""

    rule: Rule | None = None
    """The rule that was chosen with it; None: the one in force stays."""

    inputs: Mapping[str, float | None] = field(default_factory=dict)
    """The figures that it was made from; None: unknown, or not enough samples."""
