"""A real Kubernetes for tests: the fixture `cluster`, one for each module.

It starts in some seconds, and what one module leaves in it is in nobody's way. A conftest takes it
by `from tests.cluster_fixture import cluster`.
"""

import os
from collections.abc import Iterator

import pytest

from tests.tiny import TINY
from tools.cluster import Cluster, unavailable

MODEL_ON_THE_NODE = "/models/tandem-tiny"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of this module's own, side by side with any other; skips where none can run."""
    skip_without_cluster()
    # With an owner it ends even when pytest is killed.
    found = Cluster.start(
        f"test-{os.getpid()}", mounts={TINY: MODEL_ON_THE_NODE}, owner=os.getpid()
    )
    yield found
    found.stop()


def skip_without_cluster() -> None:
    """Skip a test on a machine that cannot run a cluster, with the sentence that says why."""
    sentence = unavailable()
    if sentence:
        pytest.skip(sentence)
