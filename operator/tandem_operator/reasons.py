"""Reasons of a service's conditions, one word in CamelCase each; those of API errors are in k8s."""

from typing import Final

# Accepted
VALID: Final = "Valid"
INVALID_SPEC: Final = "InvalidSpec"
"""Only another spec helps."""
UNSATISFIABLE: Final = "Unsatisfiable"
"""The spec asks for something that the operator's settings cannot give."""
HOST_PATH_NOT_ALLOWED: Final = "HostPathNotAllowed"
CLAIM_MISSING: Final = "ClaimMissing"
NAME_TAKEN: Final = "NameTaken"
"""An object of a desired name belongs to another owner."""

# RayReady
KUBERAY_MISSING: Final = "KubeRayMissing"
KUBERAY_REFUSED: Final = "KubeRayRefused"
NOT_CREATED: Final = "NotCreated"
NOT_OBSERVED: Final = "NotObserved"
"""KubeRay has not observed the RayService's generation yet."""
HEAD_MISSING: Final = "HeadMissing"
HEAD_STARTING: Final = "HeadStarting"
HEAD_FAILED: Final = "HeadFailed"
HEAD_READY: Final = "HeadReady"

# ModelLoaded
NOT_STARTED: Final = "NotStarted"
LOADING: Final = "Loading"
LOADED: Final = "Loaded"
POD_FAILED: Final = "PodFailed"
REPLICA_FAILED: Final = "ReplicaFailed"

# Progressing
STARTING: Final = "Starting"
UPDATING: Final = "Updating"
RECONCILED: Final = "Reconciled"
"""The observed state is the desired one."""
REJECTED: Final = "Rejected"
"""The spec is not accepted, so nothing is changed."""
DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"
WRITE_CONFLICT: Final = "WriteConflict"
"""Another writer changes an object back again and again."""

# Ready; while it is not True, it has the reason of the condition that it waits for.
SERVING: Final = "Serving"
SERVING_PREVIOUS: Final = "ServingPrevious"
NO_ENDPOINT: Final = "NoEndpoint"
SCALED_TO_ZERO: Final = "ScaledToZero"
"""No replica is asked for, and the endpoint refuses requests. ModelLoaded has it, too."""

# Scaling; while a decision has a reason of its own in the way, they have that one.
VALID_METRICS: Final = "ValidMetrics"
DESIRED_WITHIN_RANGE: Final = "DesiredWithinRange"
TARGETS_FEASIBLE: Final = "TargetsFeasible"
NO_ESTIMATE: Final = "NoEstimate"
"""The replicas cannot predict the latencies of an idle one yet."""
ENOUGH_CAPACITY: Final = "EnoughCapacity"
UNKNOWN_TIME_ZONE: Final = "UnknownTimeZone"
"""A minimum of the schedule does not hold."""
PARTIAL_METRICS: Final = "PartialMetrics"
"""Some replicas cannot be judged, and the others decide; or figures may be missing."""
REPLICAS_OVERDUE: Final = "ReplicasOverdue"
"""Replicas do not answer, for longer than a start takes."""
REPLICAS_STALLED: Final = "ReplicasStalled"
"""Replicas compute no step though they have work."""

# Events
OTHER_OPERATOR: Final = "OtherOperator"
"""An operator of another namespace serves the service."""
SCALED_UP: Final = "ScaledUp"
SCALED_DOWN: Final = "ScaledDown"
