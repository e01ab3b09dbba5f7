"""The pods of a manifest: what may be said of them, and what is said about the rest."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_serve.api.manifest import ManifestError, parse_manifest
from tandem_serve.api.pods import EnvVar, RuntimeSpec, Toleration


def parse(runtime: Any) -> RuntimeSpec:
    document = {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "tiny"},
        "spec": {"model": {"source": "file:///models/tiny"}, "runtime": runtime},
    }
    return parse_manifest(yaml.safe_dump(document), folder=Path("/")).spec.runtime


def test_nothing_said_leaves_all_to_the_operator() -> None:
    assert parse({}) == RuntimeSpec()
    assert parse({}).document() == {
        "image": None,
        "imagePullPolicy": None,
        "imagePullSecrets": [],
        "env": [],
        "volumes": [],
        "volumeMounts": [],
        "nodeSelector": {},
        "tolerations": [],
        "gcsFaultToleranceOptions": None,
    }


def test_kubernetes_own_names_are_understood() -> None:
    runtime = parse(
        {
            "image": "registry.example.com/tandem:1",
            "imagePullPolicy": "IfNotPresent",
            "imagePullSecrets": ["registry"],
            "env": [{"name": "OMP_PROC_BIND", "value": "true"}, {"name": "EMPTY"}],
            "volumes": [{"name": "driver", "hostPath": {"path": "/usr/local/Ascend"}}],
            "volumeMounts": [{"name": "driver", "mountPath": "/usr/local/Ascend"}],
            "nodeSelector": {"accelerator": "huawei-Ascend910"},
            "tolerations": [{"key": "npu", "operator": "Exists", "effect": "NoSchedule"}],
        }
    )

    assert runtime.env == [EnvVar(name="OMP_PROC_BIND", value="true"), EnvVar(name="EMPTY")]
    assert runtime.volumes[0].host_path == {"path": "/usr/local/Ascend"}
    assert runtime.tolerations == [Toleration(key="npu", operator="Exists", effect="NoSchedule")]


@pytest.mark.parametrize(
    ("runtime", "problem"),
    [
        ({"imge": "x"}, "spec.runtime.imge: unknown field; did you mean 'image'?"),
        (
            {"image": ""},
            "spec.runtime.image: is empty, expected at least 1 character; give a value or "
            "leave it out",
        ),
        (
            {"imagePullPolicy": "always"},
            "spec.runtime.imagePullPolicy: 'always' is not one of its values "
            "(did you mean 'Always'?); allowed: Always, IfNotPresent, Never",
        ),
        (
            {"imagePullSecrets": [{"name": "registry"}]},
            "spec.runtime.imagePullSecrets.0: this is a mapping, expected text",
        ),
        (
            {"imagePullSecrets": ["-registry"]},
            "spec.runtime.imagePullSecrets.0: '-registry' is not the name of an object; use up to "
            "253 lower-case letters, digits, '-' and '.', a letter or digit first and last and "
            "beside each '.'",
        ),
        ({"env": {"A": "b"}}, "spec.runtime.env: this is a mapping, expected a list"),
        (
            {"env": [{"name": "A"}] * 129},
            "spec.runtime.env: has 129 entries; the limit is 128",
        ),
        (
            {"env": [{"name": "A", "valu": "b"}]},
            "spec.runtime.env.0.valu: unknown field; did you mean 'value'?",
        ),
        (
            {"env": [{"name": "A", "value": 1}]},
            "spec.runtime.env.0.value: 1 is a number, expected text; put it in quotes",
        ),
        (
            {"env": [{"name": "1st"}]},
            "spec.runtime.env.0.name: '1st' is not the name of a variable; use letters, digits, "
            "'-', '.' and '_', no digit first",
        ),
        (
            {"env": [{"name": "RAY_AUTH_TOKEN", "value": "x"}]},
            "spec.runtime.env.0.name: 'RAY_AUTH_TOKEN' is set by Tandem; names that begin with "
            "RAY_ or TANDEM_ are taken, but for TANDEM_KERNELS, TANDEM_PIN, TANDEM_THREADS",
        ),
        (
            {"nodeSelector": {"zone": 1}},
            "spec.runtime.nodeSelector.zone: 1 is a number, expected text; put it in quotes",
        ),
        (
            {"tolerations": [{"key": "npu", "effect": "noschedule"}]},
            "spec.runtime.tolerations.0.effect: 'noschedule' is not one of its values (did you "
            "mean 'NoSchedule'?); allowed: NoSchedule, PreferNoSchedule, NoExecute",
        ),
        (
            {"tolerations": [{"value": "x"}]},
            "spec.runtime.tolerations.0: key is missing; operator Equal needs one, or set "
            "operator: Exists",
        ),
        (
            {"tolerations": [{"operator": "Exists", "value": "x"}]},
            "spec.runtime.tolerations.0: value 'x' has no meaning with operator Exists; leave it "
            "out or set operator: Equal",
        ),
    ],
)
def test_a_wrong_value_is_refused_in_words(runtime: Any, problem: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(runtime)

    assert caught.value.problems == [problem]
