"""Manifests that the chart renders, and values that it refuses; helm alone, no cluster."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_operator.k8s.names import SERVICE
from tandem_operator.ray.token_key import NAME
from tandem_serve.api.ray_env import METRICS_PATH
from tests.integration.chart.helm import CHART, VALUES, Helm, HelmFailed, objects_of, only
from tests.unit.operator.render.services import rendered, worker_of


def names(objects: list[dict[str, Any]]) -> set[str]:
    return {one["kind"] for one in objects}


def settings(objects: list[dict[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(
        only(objects, "ConfigMap", "tandem-operator")["data"]["operator.yaml"]
    )
    return read


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.name)
def test_lint_finds_nothing(helm: Helm, file: Path) -> None:
    helm.run("lint", "--strict", str(CHART), values=[file])


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
        ({"metrics": {"podMonitor": {"enabled": "yes"}}}, "/metrics/podMonitor/enabled"),
        ({"metrics": {"prometheusRule": {"enabled": "yes"}}}, "/metrics/prometheusRule/enabled"),
        ({"networkPolicy": {"apiServerPorts": [0]}}, "/networkPolicy/apiServerPorts/0"),
        ({"resources": {"limits": {"memory": "much"}}}, "/resources/limits/memory"),
        ({"extraEnv": [{"value": "x"}]}, "/extraEnv/0"),
        ({"settings": {"replicas": {}}}, "/settings"),
        ({"settings": {"resyncSeconds": "60"}}, "/settings/resyncSeconds"),
        ({"settings": {"namespaces": ["default"]}}, "additional properties 'namespaces'"),
        ({"settings": {"replica": {"cpuOvercommit": 0}}}, "/settings/replica/cpuOvercommit"),
        ({"settings": {"autoscaling": {"prometheus": {"matchers": {"a-b": "x"}}}}}, "'a-b'"),
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


KNOWN = ("--api-versions", "monitoring.coreos.com/v1/PodMonitor")


@pytest.mark.parametrize(
    ("args", "made"),
    [
        ([], False),
        (KNOWN, True),
        ([*KNOWN, "--set", "metrics.podMonitor.enabled=false"], False),
        (["--set", "metrics.podMonitor.enabled=true"], True),
    ],
    ids=["no such kind", "the kind is there", "switched off", "forced"],
)
def test_replicas_have_a_pod_monitor_where_the_cluster_knows_the_kind(
    helm: Helm, args: list[str], *, made: bool
) -> None:
    assert ("PodMonitor" in names(helm.template(*args))) == made


def test_the_pod_monitor_finds_the_replicas_and_the_port_that_are_rendered(helm: Helm) -> None:
    monitor = only(helm.template(*KNOWN), "PodMonitor")["spec"]
    template = worker_of(rendered())["template"]
    [scraped] = monitor["podMetricsEndpoints"]
    [container] = template["spec"]["containers"]

    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert {"name": scraped["port"], "containerPort": 9464, "protocol": "TCP"} in container["ports"]
    assert scraped["path"] == METRICS_PATH
    [label] = [
        relabeling
        for relabeling in scraped["relabelings"]
        if relabeling["targetLabel"] == "inference_service"
    ]
    assert label["sourceLabels"] == [
        "__meta_kubernetes_pod_label_" + re.sub(r"[^a-zA-Z0-9]", "_", SERVICE)
    ]


@pytest.mark.parametrize("enabled", ["auto", "true", "false"])
def test_the_operator_makes_rules_and_may_as_the_values_say(helm: Helm, enabled: str) -> None:
    objects = helm.template("--set", f"metrics.prometheusRule.enabled={enabled}")
    rules = only(objects, "ClusterRole", "tandem-operator")["rules"]

    assert str(settings(objects)["prometheusRule"]["enabled"]).lower() == enabled
    assert any("prometheusrules" in rule["resources"] for rule in rules) == (enabled != "false")


def test_the_operators_series_keep_the_namespace_that_they_are_about(helm: Helm) -> None:
    monitor = only(helm.template("--set", "metrics.serviceMonitor.enabled=true"), "ServiceMonitor")

    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True


def test_the_dashboards_are_where_grafanas_sidecar_looks(helm: Helm) -> None:
    labelled = [
        one
        for one in helm.template("--set", "dashboards.annotations.grafana_folder=Tandem")
        if one["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
    ]
    shipped = {
        f"tandem-{file.name}": json.loads(file.read_text())
        for file in (CHART / "dashboards").glob("*.json")
    }

    found = {name: json.loads(text) for one in labelled for name, text in one["data"].items()}
    assert found == shipped
    assert {one["kind"] for one in labelled} == {"ConfigMap"}
    assert all(one["metadata"]["annotations"] == {"grafana_folder": "Tandem"} for one in labelled)
    assert only(helm.template("--set", "dashboards.enabled=false"), "ConfigMap")


def test_the_pod_monitor_follows_the_namespaces_that_are_served(helm: Helm) -> None:
    def selected(*args: str) -> Any:
        return only(helm.template(*KNOWN, *args), "PodMonitor")["spec"]["namespaceSelector"]

    assert selected() == {"any": True}
    assert selected("--set", "namespaces={a,b}") == {"matchNames": ["a", "b"]}


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.name)
def test_the_same_values_render_the_same_objects(helm: Helm, file: Path) -> None:
    assert helm.template(values=[file]) == helm.template(values=[file])


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
    assert pod["containers"][0]["image"] == f"registry.example/tandem/operator@{digest}"


OPERATOR, REPLICA = "image.repository", "settings.replica.image"


@pytest.mark.parametrize("name", [OPERATOR, REPLICA])
@pytest.mark.parametrize("image", ["tandem", "tandem/it", "a/b.c/it", "registry.example/"])
def test_an_image_without_a_registry_is_refused(helm: Helm, name: str, image: str) -> None:
    with pytest.raises(HelmFailed) as refused:
        helm.template("--set", f"{name}={image}")

    said = f'{name} is "{image}", which names no registry: a node would pull it from docker.io'
    assert said in str(refused.value)
    assert "; write one such as registry.example/tandem/" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "missing"),
    [(OPERATOR, REPLICA), (REPLICA, OPERATOR)],
    ids=["operator's", "replicas'"],
)
def test_one_image_alone_is_not_enough(helm: Helm, given: str, missing: str) -> None:
    with pytest.raises(HelmFailed, match=f'{missing} is "", which names no registry'):
        helm.run("template", "tandem", str(CHART), "--set", f"{given}=registry.test/it")


@pytest.mark.parametrize("registry", ["docker.io", "localhost", "host:5000", "10.0.0.1:80/a"])
def test_images_of_any_registry_are_taken(helm: Helm, registry: str) -> None:
    replica = f"{registry}/it@sha256:{'a' * 64}"
    objects = helm.template("--set", f"{OPERATOR}={registry}/it,{REPLICA}={replica}")

    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"{registry}/it:0.1.0"
    assert settings(objects)["replica"]["image"] == replica


def test_the_chart_fills_the_settings_that_it_knows(helm: Helm) -> None:
    made = settings(helm.template(namespace="there"))

    assert made["namespaces"] == []
    operator = made["access"]["operator"][0]
    assert operator["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] == "there"
    labels = only(helm.template(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"].items() <= labels.items()
    other = settings(helm.template("--set", "networkPolicy.apiServerPorts={8443}"))
    assert other["access"]["apiServerPorts"] == [8443]


def test_no_peer_by_default_is_let_in_by_its_labels_alone(helm: Helm) -> None:
    objects = helm.template(namespace="there")
    access = settings(objects)["access"]
    ingress = only(objects, "NetworkPolicy")["spec"]["ingress"]
    peers = [peer for name in ("kuberay", "operator", "prometheus") for peer in access[name]]
    peers += [peer for rule in ingress for peer in rule["from"]]

    namespaces = [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for peer in peers
    ]
    assert namespaces == ["kuberay-system", "there", "monitoring", "monitoring"]


def test_settings_of_the_user_win(helm: Helm) -> None:
    values = {
        "settings": {"replica": {"image": "registry.test/mine:1"}, "access": {"prometheus": []}}
    }
    made = settings(helm.template(values=[values]))

    assert made["replica"]["image"] == "registry.test/mine:1"
    assert made["access"]["prometheus"] == []
    assert made["access"]["kuberay"]


def test_with_names_there_is_a_role_in_each_namespace_and_no_cluster_role(helm: Helm) -> None:
    objects = helm.template("--set", "namespaces={a,b}")

    assert names(objects).isdisjoint({"ClusterRole", "ClusterRoleBinding"})
    roles = [one for one in objects if one["kind"] == "Role"]
    assert {one["metadata"]["namespace"] for one in roles} == {"a", "b", "sys"}
    assert settings(objects)["namespaces"] == ["a", "b"]


@pytest.mark.parametrize("checks_nodes", [False, True])
def test_a_role_of_a_namespace_allows_what_the_cluster_role_does_but_nodes(
    helm: Helm, checks_nodes: bool
) -> None:
    values = [{"settings": {"autoscaling": {"checkNodes": checks_nodes}}}]
    everywhere = only(helm.template(values=values), "ClusterRole", "tandem-operator")
    there = helm.template("--set", "namespaces={a}", values=values)
    here = only(there, "Role", "tandem-operator")

    # No role of a namespace can allow nodes: the room for replicas is unknown there.
    nodes = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    assert here["rules"] + (nodes if checks_nodes else []) == everywhere["rules"]


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
    text = helm.run("template", "r" * 53, str(CHART), values=VALUES[-1:])
    named = [each["metadata"]["name"] for each in objects_of(text)]

    assert max(len(name) for name in named) <= 63
