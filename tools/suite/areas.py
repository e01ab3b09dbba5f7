"""The areas of the tests, and the stages of `make test`; plain data.

Every test file belongs to one area; `make test` takes what is not marked slow, in stages. Nothing
that needs a timely answer runs beside something that takes all cores, so a stage with a Ray or a
Kubernetes has one process, and the machine to itself.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """Tests that one command runs: `make test-NAME`."""

    name: str
    holds: str
    """Subjects of its tests, for somebody who looks for the right area."""
    paths: tuple[str, ...]
    """Files and folders below tests/; of two areas the longer path has a file."""
    code: tuple[str, ...]
    """Folders and files of the repository whose change asks for it."""
    minutes: int
    """Minutes on two cores, caches warm, rounded up."""
    processes: int = 1
    """Processes that share it; more than one only where nothing waits for an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of `make test`: those tests of some folders that are not slow, and have its marks."""

    name: str
    paths: tuple[str, ...]
    """Below tests/; their tests run in this order."""
    marks: str
    """As pytest's -m has it."""
    left_out: tuple[str, ...] = ()
    """Folders below tests/ that their areas alone run, whatever the marks say."""
    processes: int = 1
    has_second_try: bool = False
    """True: what fails is run once more, on a cluster of its own, and named in the summary."""


_KUBERNETES: Final = ("charts", "operator", "crds", "tools/cluster", "tools/kubernetes.py")

AREAS: Final = (
    Area(
        name="unit",
        holds="Every module by itself, whole ranges included",
        paths=("unit",),
        code=("charts", "engine", "operator", "serve", "tools", "examples"),
        minutes=6,
        processes=2,
    ),
    Area(
        name="benchmarks",
        holds="The programs that measure: what they count, compare and write",
        paths=("unit/benchmarks",),
        code=("benchmarks", "engine/tandem_engine/simulate"),
        minutes=4,
        processes=2,
    ),
    Area(
        name="docs",
        holds="Links, examples, tables and words of the documentation",
        paths=("unit/docs", "unit/test_vocabulary.py"),
        code=("docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
        minutes=1,
        processes=2,
    ),
    Area(
        name="engine",
        holds="One rank: tokens against transformers, beams, W8A8, faults of any step, metrics",
        paths=("integration",),
        code=("engine",),
        minutes=18,
        processes=2,
    ),
    Area(
        name="ranks",
        holds="Several ranks, micro-batches: their life and steps, on Ray and on Kubernetes",
        paths=(
            "integration/test_dp_ranks.py",
            "integration/test_micro_batch_aborts.py",
            "integration/test_micro_batch_combinations.py",
            "integration/test_micro_batch_engine.py",
            "integration/test_overlap_link.py",
            "integration/test_pipelining.py",
            "integration/test_rank_engine.py",
            "integration/test_ranks.py",
            "integration/test_timeline.py",
            "e2e/test_local_ranks.py",
            "e2e/kubernetes/test_ranks.py",
        ),
        code=(
            "engine/tandem_engine/microbatch",
            "engine/tandem_engine/parallel",
            "engine/tandem_engine/runner",
            "engine/tandem_engine/device/cpu/native",
            "serve/tandem_serve/rank_actors.py",
        ),
        minutes=9,
    ),
    Area(
        name="rank-tokens",
        holds="Several ranks: tokens of every shape and setting, and 500 questions",
        paths=("integration/test_rank_accuracy.py", "integration/test_rank_matrix.py"),
        code=(
            "engine/tandem_engine/microbatch",
            "engine/tandem_engine/parallel",
            "engine/tandem_engine/runner",
            "engine/tandem_engine/device/cpu/native",
        ),
        minutes=15,
    ),
    Area(
        name="arm",
        holds="The native kernels for aarch64: results under qemu, of each variant",
        paths=("integration/test_arm.py",),
        code=("engine/tandem_engine/device/cpu/native", "tests/native", "tools/check_arm.py"),
        minutes=6,
    ),
    Area(
        name="npu",
        holds="The NPU back end: the real torch_npu without a card, tokens over its operators",
        paths=(
            "integration/test_npu_host.py",
            "integration/test_npu_tokens.py",
            "integration/test_torch_npu.py",
            "unit/engine/npu",
        ),
        code=(
            "engine/tandem_engine/device",
            "engine/tandem_engine/runner",
            "engine/tandem_engine/sampling",
            "tests/npu",
            "tests/pretended_device",
        ),
        minutes=6,
    ),
    Area(
        name="npu-ranks",
        holds="Ranks on pretended cards: their tokens, their faults, and their pods on Kubernetes",
        paths=(
            "e2e/kubernetes/test_npu.py",
            "integration/test_npu_rank_hosts.py",
            "integration/test_npu_ranks.py",
            "integration/test_npu_streams.py",
        ),
        code=(
            "engine/tandem_engine/device",
            "engine/tandem_engine/parallel",
            "operator/tandem_operator/render",
            "tests/npu",
        ),
        minutes=16,
    ),
    Area(
        name="hostile",
        holds="Hostile callers, endless requests, callers that leave, silent streams; real HAProxy",
        paths=(
            "integration/hostile",
            "integration/test_haproxy.py",
            "integration/test_logs.py",
            "integration/test_silent_streams.py",
        ),
        code=("serve/tandem_serve/http", "serve/tandem_serve/pod"),
        minutes=1,
    ),
    Area(
        name="serve",
        holds="`tandem serve` and its sisters on a local Ray: life, load, drain, zero replicas",
        paths=("e2e",),
        code=("serve",),
        minutes=3,
    ),
    Area(
        name="chart",
        holds="The Helm chart: templates, releases, rights, installation, images",
        paths=("integration/chart",),
        code=("charts", "containers"),
        minutes=7,
    ),
    Area(
        name="cluster",
        holds="The throw-away Kubernetes of `make up` itself",
        paths=("integration/cluster",),
        code=("tools/cluster", "tools/up.py"),
        minutes=4,
    ),
    Area(
        name="operator",
        holds="The operator on a real API server: CRD, reconcile, rights, leases, 200 services",
        paths=("integration/operator",),
        code=("operator", "crds", "serve/tandem_serve/api"),
        minutes=10,
    ),
    Area(
        name="kubernetes",
        holds="A service's whole life on Kubernetes, closed doors, versions that cannot start",
        paths=("e2e/kubernetes",),
        code=(*_KUBERNETES, "serve"),
        minutes=13,
    ),
    Area(
        name="faults",
        holds="Lost ranks, pods, heads, operators and API servers; minutes of real silence",
        paths=(
            "integration/test_micro_batch_faults.py",
            "integration/test_rank_faults.py",
            "integration/test_starting_ranks.py",
            "integration/operator/test_faults.py",
            "e2e/kubernetes/test_faults.py",
            "e2e/kubernetes/test_head_fault_tolerance.py",
        ),
        code=(
            "engine/tandem_engine/parallel",
            "engine/tandem_engine/runner",
            "operator/tandem_operator/controller",
            "operator/tandem_operator/reconcile",
            "operator/tandem_operator/ray",
        ),
        minutes=12,
    ),
    Area(
        name="autoscaling",
        holds="Replicas that follow the SLO, to zero and back; the real KEDA",
        paths=(
            "e2e/kubernetes/test_autoscaling.py",
            "e2e/kubernetes/test_scale_to_zero.py",
            "integration/cluster/test_keda.py",
        ),
        code=("operator/tandem_operator/scaling_law", "operator/tandem_operator/autoscaler"),
        minutes=14,
    ),
    Area(
        name="autoscaling-faults",
        holds="The autoscaler while Prometheus, its figures, the operator or a replica fail",
        paths=("e2e/kubernetes/test_autoscaling_faults.py",),
        code=("operator/tandem_operator/scaling_law", "operator/tandem_operator/autoscaler"),
        minutes=20,
    ),
    Area(
        name="monitoring",
        holds="Rules, alerts and every query of the dashboards on a real Prometheus",
        paths=(
            "integration/monitoring",
            "integration/cluster/test_monitoring.py",
            "e2e/test_queries.py",
        ),
        code=("charts/tandem/dashboards", "tools/dashboards", "operator/tandem_operator/render"),
        minutes=8,
    ),
)

# Three processes on two cores: while tests of one wait, those of the others compute.
STAGES: Final = (
    # Programs that measure are no part of the product, and mypy knows whether they still fit it.
    # One stage, as each start of the processes costs half a minute of imports.
    Stage(
        name="unit and integration",
        paths=("unit", "integration"),
        marks="not slow and not cluster",
        left_out=("unit/benchmarks",),
        processes=3,
    ),
    Stage(name="local Ray", paths=("e2e",), marks="not slow and not cluster"),
    # The folders alone that have such tests: those of the others take ten seconds to be read.
    # The operator's tests leave the cluster as it was (tests/cluster_fixture.py), so they go first.
    Stage(
        name="Kubernetes",
        paths=("integration/operator", "e2e/kubernetes"),
        marks="not slow and cluster",
        has_second_try=True,
    ),
)
"""The stages of `make test` after the checks; a test that is not marked slow is in one of them."""


def below(path: PurePosixPath, roots: tuple[str, ...]) -> str:
    """Return the longest of some paths that `path` is or lies below; empty: none."""
    text = f"{path}/"  # is_relative_to takes twenty times as long
    return max((root for root in roots if text.startswith(f"{root}/")), key=len, default="")


def area_of(path: PurePosixPath) -> Area:
    """Return the area of a test file, given relative to tests/.

    Raises:
        LookupError: no area has it.
    """
    area = max(AREAS, key=lambda area: len(below(path, area.paths)))
    if not below(path, area.paths):
        raise LookupError(f"tests/{path} belongs to no area; name it in tools/suite/areas.py")
    return area
