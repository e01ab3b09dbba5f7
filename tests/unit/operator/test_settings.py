"""The settings file, and what is said about one that cannot be used."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from tandem_operator.render.settings import ContainerResources, Peer
from tandem_operator.settings import (
    OperatorSettings,
    SettingsError,
    load_settings,
    parse_settings,
)
from tandem_serve.api.problems import part_of

SMALLEST = "replica: {image: registry.test/replica:1}"


def problems_of(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text)
    return caught.value.problems


def models_below(model: type[BaseModel]) -> list[type[BaseModel]]:
    parts = [part for field in model.model_fields.values() if (part := part_of(field))]
    return [model, *(found for part in parts for found in models_below(part))]


def test_an_image_is_all_that_must_be_said() -> None:
    settings = parse_settings(SMALLEST)

    assert settings.namespaces == []
    assert settings.replica.image == "registry.test/replica:1"
    assert settings.replica.cpu_overcommit == 1
    assert settings.replica.pod_security_context["runAsNonRoot"]
    assert settings.resync_seconds == 60
    assert sorted(settings.npu_profiles) == [
        "atlas-300i-duo",
        "atlas-800i-a2",
        "atlas-800i-a3",
        "cce-ascend-1980",
    ]


def test_a_registrys_secret_may_have_points_in_its_name() -> None:
    settings = parse_settings(
        "replica: {image: registry.test/replica:1, imagePullSecrets: [pull.registry.test]}"
    )

    assert settings.replica.image_pull_secrets == ["pull.registry.test"]


@pytest.mark.parametrize("model", models_below(OperatorSettings), ids=lambda model: model.__name__)
def test_every_field_is_described(model: type[BaseModel]) -> None:
    assert all(field.description for field in model.model_fields.values())


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "operator.yaml"
    file.write_text(f"{SMALLEST}\nnamespaces: [models]\nresyncSeconds: 5")

    settings = load_settings(file)

    assert (settings.namespaces, settings.resync_seconds) == (["models"], 5)


def test_a_profile_of_ones_own_stands_beside_the_built_in_ones() -> None:
    settings = parse_settings(
        f"""
{SMALLEST}
defaultNpuProfile: mine
npuProfiles:
  mine: {{resourceName: example.com/card, cards: 2, nodeSelector: {{pool: cards}}}}
  atlas-800i-a2: {{resourceName: huawei.com/npu, cards: 8}}
"""
    )

    assert settings.npu_profiles["mine"].node_selector == {"pool": "cards"}
    assert settings.npu_profiles["atlas-800i-a2"].resource_name == "huawei.com/npu"
    assert "atlas-800i-a3" in settings.npu_profiles


def test_a_peer_is_written_as_kubernetes_writes_it() -> None:
    settings = parse_settings(
        f"""
{SMALLEST}
access:
  clients:
    - namespaceSelector: {{}}
      podSelector: {{matchLabels: {{app: web}}, matchExpressions: []}}
    - ipBlock: {{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}
"""
    )

    assert [peer.manifest() for peer in settings.access.clients] == [
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "replica: is missing; it has no default", id="empty"),
        pytest.param(
            "[]", "the settings are not a mapping; begin with replica: {image: …}", id="list"
        ),
        pytest.param("replica: {}", "replica.image: is missing; it has no default", id="no image"),
        pytest.param(
            "replica: {image: i, cpuOvercommit: 0}",
            "replica.cpuOvercommit: 0 is too small; allowed: 1 to 100 (default 1)",
            id="range",
        ),
        pytest.param(
            "replica: {image: i, workerOverheadMemory: much}",
            "replica.workerOverheadMemory: 'much' is not an amount of memory; write a number and a "
            "unit out of Ki, Mi, Gi, Ti, k, M, G, T, such as 2Gi",
            id="memory",
        ),
        pytest.param(
            "replica: {image: i, headResources: {cpu: lots, memory: 1Gi}}",
            "replica.headResources.cpu: 'lots' is not an amount of CPU; write one such as 500m "
            "or 2",
            id="cpu",
        ),
        pytest.param(
            "replica: {image: i, env: [{name: RAY_X, value: '1'}]}",
            "replica.env.0.name: 'RAY_X' is set by Tandem; names that begin with RAY_ or TANDEM_ "
            "are taken, but for TANDEM_KERNELS, TANDEM_PIN, TANDEM_THREADS",
            id="variable",
        ),
        pytest.param(
            "replica: {image: i, rayVersion: newest}",
            "replica.rayVersion: 'newest' is not a version of Ray; write one such as 2.60.0",
            id="version",
        ),
        pytest.param(
            f"{SMALLEST}\naccess: {{clients: [{{}}]}}",
            "access.clients.0: the peer is empty; give namespaceSelector, podSelector or "
            "ipBlock (namespaceSelector: {} means every pod)",
            id="peer",
        ),
        pytest.param(
            f"{SMALLEST}\nautoscaling: {{prometheus: {{matchers: {{a-b: east}}}}}}",
            "autoscaling.prometheus.matchers: 'a-b' is not a name of a label; write one such as "
            "cluster: a letter, then letters, digits and underscores",
            id="matcher",
        ),
        pytest.param(
            f"{SMALLEST}\ndefaultNpuProfile: a9",
            "defaultNpuProfile 'a9' is not one of npuProfiles; allowed: atlas-300i-duo, "
            "atlas-800i-a2, atlas-800i-a3, cce-ascend-1980",
            id="profile",
        ),
        pytest.param(
            f"{SMALLEST}\nresyncSecond: 5",
            "unknown field 'resyncSecond'; did you mean 'resyncSeconds'?",
            id="unknown",
        ),
        pytest.param(
            f"{SMALLEST}\nnpuProfiles: {{mine: {{resourceName: a/b, card: 2}}}}",
            "npuProfiles.mine: unknown field 'card'; did you mean 'cards'?",
            id="unknown in a profile",
        ),
    ],
)
def test_a_problem_is_one_sentence(text: str, problem: str) -> None:
    assert problems_of(text) == [problem]


def test_every_problem_is_told_at_once() -> None:
    assert len(problems_of("replica: {cpuOvercommit: 0}\nresyncSeconds: 0")) == 3


def test_a_text_that_is_no_yaml_says_where() -> None:
    (problem,) = problems_of("replica: {")

    assert problem.startswith("the settings cannot be read: ")
    assert "line 1" in problem


def test_a_field_that_is_there_twice_is_named() -> None:
    (problem,) = problems_of("resyncSeconds: 30\nresyncSeconds: 60")

    assert "line 2" in problem
    assert "the field 'resyncSeconds' is given twice; keep one" in problem


def test_a_second_document_is_refused() -> None:
    (problem,) = problems_of("resyncSeconds: 30\n---\nresyncSeconds: 60")

    assert problem == "the settings are 2 documents; keep one"


def test_a_missing_file_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file; name one with --config"):
        load_settings(tmp_path / "operator.yaml")


def test_an_address_range_stands_alone() -> None:
    with pytest.raises(ValueError, match="ipBlock is beside a selector"):
        Peer.model_validate({"ip_block": {"cidr": "10.0.0.0/8"}, "pod_selector": {}})


def test_resources_are_amounts() -> None:
    with pytest.raises(ValueError, match="is not an amount of CPU"):
        ContainerResources(cpu="none", memory="1Gi")


@pytest.mark.parametrize(
    "module", ["reconcile.plan", "settings", "render.service", "k8s.names"], ids=str
)
def test_the_pure_part_loads_no_framework(module: str) -> None:
    code = (
        f"import sys, tandem_operator.{module}; "
        "print([m for m in ('torch', 'ray', 'kopf', 'kubernetes', 'aiohttp') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
