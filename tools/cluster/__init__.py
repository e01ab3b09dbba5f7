"""A one-node Kubernetes without Docker, to use and throw away."""

from tools.cluster.cluster import DEFAULT_NAME, Cluster
from tools.cluster.errors import AlreadyUp, ClusterError, Unavailable
from tools.cluster.prepare import Prepared, prepare
from tools.cluster.require import unavailable

__all__ = [
    "DEFAULT_NAME",
    "AlreadyUp",
    "Cluster",
    "ClusterError",
    "Prepared",
    "Unavailable",
    "prepare",
    "unavailable",
]
