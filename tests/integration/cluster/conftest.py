"""The cluster that these tests share."""

from tests.cluster_fixture import cluster

__all__ = ["cluster"]
