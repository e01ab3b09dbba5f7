"""Manifests that the chart renders, and values that it refuses; helm alone, no cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_operator.ray.token_key import NAME
from tests.integration.chart.helm import CHART, VALUES, Helm, HelmFailed, only

pytestmark = pytest.mark.cluster


def names(objects: list[dict[str, Any]]) -> set[str]:
    return {one["kind"] for one in objects}


def settings(objects: list[dict[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(only(objects, "ConfigMap")["data"]["operator.yaml"])
    return read


@pytest.mark.parametrize("file", [None, *VALUES], ids=lambda file: file.name if file else "default")
def test_lint_finds_nothing(helm: Helm, file: Path | None) -> None:
    helm.run("lint", "--strict", str(CHART), values=[file] if file else [])


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"replicas": 2}, "additional properties 'replicas' not allowed"),
        ({"replicaCount": -1}, "/replicaCount"),
        ({"replicaCount": "two"}, "/replicaCount"),
        ({"namespaces": "default"}, "/namespaces"),
        ({"namespaces": ["No_Name"]}, "/namespaces/0"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"image": {"name": "x"}}, "additional properties 'name' not allowed"),
        ({"crds": {"keep": "yes"}}, "/crds/keep"),
        ({"metrics": {"serviceMonitor": {"interval": "often"}}}, "interval"),
        ({"networkPolicy": {"apiServerPorts": [0]}}, "/networkPolicy/apiServerPorts/0"),
        ({"resources": {"limits": {"memory": "much"}}}, "/resources/limits/memory"),
        ({"extraEnv": [{"value": "x"}]}, "/extraEnv/0"),
        ({"settings": {"replicas": {}}}, "/settings"),
        ({"settings": {"resyncSeconds": "60"}}, "/settings/resyncSeconds"),
        ({"settings": {"namespaces": ["default"]}}, "additional properties 'namespaces'"),
        ({"settings": {"replica": {"cpuOvercommit": 0}}}, "/settings/replica/cpuOvercommit"),
    ],
    ids=json.dumps,
)
def test_wrong_values_are_refused_by_name(
    helm: Helm, values: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(HelmFailed, match="schema") as refused:
        helm.run("lint", str(CHART), values=[values])

    assert complaint in str(refused.value)


def test_a_monitor_without_its_service_is_refused(helm: Helm) -> None:
    values = {"metrics": {"service": False, "serviceMonitor": {"enabled": True}}}

    with pytest.raises(HelmFailed, match=r"needs metrics\.service: true"):
        helm.template(values=[values])


@pytest.mark.parametrize("file", [None, *VALUES], ids=lambda file: file.name if file else "default")
def test_the_same_values_render_the_same_objects(helm: Helm, file: Path | None) -> None:
    values = [file] if file else []

    assert helm.template(values=values) == helm.template(values=values)


def test_the_pod_is_hardened(helm: Helm) -> None:
    pod = only(helm.template(), "Deployment")["spec"]["template"]["spec"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_one_pod_is_recreated_and_two_roll_under_a_budget(helm: Helm) -> None:
    one, two = helm.template(), helm.template("--set", "replicaCount=2")

    assert only(one, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert only(two, "Deployment")["spec"]["strategy"] == {"type": "RollingUpdate"}
    assert "PodDisruptionBudget" not in names(one)
    assert only(two, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_only_new_settings_and_new_pods_values_change_the_pod(helm: Helm) -> None:
    def template(*args: str) -> Any:
        return only(helm.template(*args), "Deployment")["spec"]["template"]

    assert template("--set", "settings.resyncSeconds=30") != template()
    assert template("--set", "networkPeers.prometheus=null") != template()
    assert template("--set", "metrics.serviceMonitor.interval=5s") == template()


def test_a_digest_wins_over_the_tag(helm: Helm) -> None:
    digest = f"sha256:{'a' * 64}"
    objects = helm.template("--set", f"image.tag=x,image.digest={digest}")

    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"tandem/operator@{digest}"


def test_the_chart_fills_the_settings_that_it_knows(helm: Helm) -> None:
    made = settings(helm.template(namespace="there"))

    assert made["namespaces"] == []
    assert made["replica"]["image"].startswith("tandem/replica:")
    operator = made["access"]["operator"][0]
    assert operator["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == "there"
    labels = only(helm.template(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"].items() <= labels.items()


def test_settings_of_the_user_win(helm: Helm) -> None:
    values = {"settings": {"replica": {"image": "mine:1"}, "access": {"prometheus": []}}}
    made = settings(helm.template(values=[values]))

    assert made["replica"]["image"] == "mine:1"
    assert made["access"]["prometheus"] == []
    assert made["access"]["kuberay"]


def test_with_names_there_is_a_role_in_each_namespace_and_no_cluster_role(helm: Helm) -> None:
    objects = helm.template("--set", "namespaces={a,b}")

    assert names(objects).isdisjoint({"ClusterRole", "ClusterRoleBinding"})
    roles = [one for one in objects if one["kind"] == "Role"]
    assert {one["metadata"]["namespace"] for one in roles} == {"a", "b", "sys"}
    assert settings(objects)["namespaces"] == ["a", "b"]


def test_a_role_of_a_namespace_allows_what_the_cluster_role_does(helm: Helm) -> None:
    everywhere = only(helm.template(), "ClusterRole", "tandem-operator")
    here = only(helm.template("--set", "namespaces={a}"), "Role", "tandem-operator")

    assert here["rules"] == everywhere["rules"]


def test_no_role_deletes_anything(helm: Helm) -> None:
    rules = only(helm.template(), "ClusterRole", "tandem-operator")["rules"]
    verbs = {verb for rule in rules for verb in rule["verbs"]}

    assert verbs.isdisjoint({"*", "delete", "deletecollection"})


@pytest.mark.parametrize("served", ["", "namespaces={a,b}"], ids=["everywhere", "by name"])
def test_the_one_secret_that_is_read_is_the_operators_own(helm: Helm, served: str) -> None:
    objects = helm.template(*(["--set", served] if served else []))
    read = [
        (role["kind"], role["metadata"].get("namespace"), rule.get("resourceNames"))
        for role in objects
        if role["kind"] in {"Role", "ClusterRole"}
        for rule in role["rules"]
        if {"secrets", "*"} & set(rule["resources"]) and set(rule["verbs"]) != {"create"}
    ]

    assert read == [("Role", "sys", [NAME])]


def test_bare_values_leave_roles_account_policy_and_crd_to_the_administrator(helm: Helm) -> None:
    objects = helm.template(values=[CHART / "ci/bare-values.yaml"])

    assert names(objects) == {"ConfigMap", "Deployment"}


def test_the_crd_is_kept_unless_told_otherwise(helm: Helm) -> None:
    def policy(*args: str) -> str | None:
        metadata = only(helm.template(*args), "CustomResourceDefinition")["metadata"]
        annotation: str | None = metadata.get("annotations", {}).get("helm.sh/resource-policy")
        return annotation

    assert policy() == "keep"
    assert policy("--set", "crds.keep=false") is None


def test_long_names_stay_within_what_kubernetes_takes(helm: Helm) -> None:
    text = helm.run("template", "r" * 53, str(CHART))
    named = [one["metadata"]["name"] for one in yaml.safe_load_all(text) if one]

    assert max(len(name) for name in named) <= 63
