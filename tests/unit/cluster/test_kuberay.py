"""KubeRay's files are put into its namespace, and its pods are found by the chart's labels."""

from tools.cluster.kuberay import NAMESPACE, deployment, place


def test_what_has_a_namespace_gets_kuberays() -> None:
    role = place({"kind": "Role", "metadata": {"name": "leader"}})

    assert role["metadata"]["namespace"] == NAMESPACE


def test_what_has_none_stays_as_it_is_but_for_its_subjects() -> None:
    binding = place(
        {"kind": "ClusterRoleBinding", "metadata": {"name": "b"}, "subjects": [{"name": "s"}]}
    )

    assert binding["metadata"] == {"name": "b"}
    assert binding["subjects"] == [{"name": "s", "namespace": NAMESPACE}]


def test_the_deployment_carries_the_labels_of_the_chart() -> None:
    template = deployment()["spec"]["template"]

    assert template["metadata"]["labels"]["app.kubernetes.io/name"] == "kuberay-operator"
    assert deployment()["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
