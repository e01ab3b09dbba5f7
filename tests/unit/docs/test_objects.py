"""Objects of Kubernetes and values of the chart that the docs show go with what is rendered."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pytest
import yaml

from tandem_operator.k8s.names import HEAD, pod_labels
from tests.unit.docs.kinds import BlockKind, blocks_of, documents
from tests.unit.docs.pages import ROOT, Block
from tests.unit.operator.render.services import SETTINGS

CHART: Final = ROOT / "charts" / "tandem"
Object = dict[str, Any]
_OF_LISTS: Final = {"list", "watch"}


def check_role(role: Object, _: Block) -> None:
    """Check that a role gives what the chart's roles for users give together."""
    text = (CHART / "templates" / "roles-for-users.yaml").read_text()
    parts = [part.split("---")[0].split("{{- end }}")[0] for part in text.split("rules:")[1:]]
    given = granted(rule for part in parts for rule in yaml.safe_load(part))

    assert granted(role["rules"]) == given


def granted(rules: Iterable[Object]) -> set[tuple[str, str]]:
    """Return resources with verbs; a subresource cannot be listed or watched."""
    pairs = (
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )
    return {
        (what, verb) for what, verb in pairs if "/" not in what or verb not in {"list", "watch"}
    }


def check_binding(binding: Object, block: Block) -> None:
    names = [
        document["metadata"]["name"] for document in documents(block) if document["kind"] == "Role"
    ]

    assert binding["roleRef"]["name"] in names


def check_policy(policy: Object, _: Block) -> None:
    """Check that a policy for the store lets in Ray heads."""
    [peer] = policy["spec"]["ingress"][0]["from"]

    labels = pod_labels("any", HEAD)
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()


def check_claim(claim: Object, block: Block) -> None:
    """Check that the manifests of the page name the claim."""
    text = block.page.read_text(encoding="utf-8")

    assert f"pvc://{claim['metadata']['name']}/" in text


def check_loader(pod: Object, block: Block) -> None:
    """Check that a pod that fills a claim mounts it, as the user that replicas run as."""
    names = [
        document["metadata"]["name"] for document in documents(block) if document["kind"] != "Pod"
    ]
    [volume] = pod["spec"]["volumes"]
    [container] = pod["spec"]["containers"]
    user = SETTINGS.replica.pod_security_context.get("runAsUser")

    assert volume["persistentVolumeClaim"]["claimName"] in names
    assert [volumeMount["name"] for volumeMount in container["volumeMounts"]] == [volume["name"]]
    assert pod["spec"]["securityContext"]["runAsUser"] == user


CHECKS: Final[Mapping[str, Callable[[Object, Block], None]]] = {
    "Role": check_role,
    "RoleBinding": check_binding,
    "NetworkPolicy": check_policy,
    "PersistentVolumeClaim": check_claim,
    "Pod": check_loader,
}


@pytest.mark.parametrize("block", blocks_of(BlockKind.OBJECTS), ids=str)
def test_every_object_goes_with_what_is_rendered(block: Block) -> None:
    for found in documents(block):
        assert found["kind"] in CHECKS, f"{block}: nothing checks a {found['kind']}; add to CHECKS"
        CHECKS[found["kind"]](found, block)


@pytest.mark.parametrize("block", blocks_of(BlockKind.VALUES), ids=str)
def test_every_value_is_one_of_the_chart(block: Block) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    for found in documents(block):
        assert not unknown(found, schema["properties"])


def unknown(found: Any, properties: Mapping[str, Any]) -> list[str]:
    """Return the names that a schema does not have; those below a reference are another test's."""
    if not isinstance(found, dict):
        return []
    missing = [name for name in found if name not in properties]
    below = [
        name
        for key, value in found.items()
        for name in unknown(value, properties.get(key, {}).get("properties", {}))
        if "properties" in properties.get(key, {})
    ]
    return missing + below
