"""KubeRay's pods are found by the chart's labels."""

from tools.cluster.kuberay import deployment


def test_the_deployment_carries_the_labels_of_the_chart() -> None:
    template = deployment()["spec"]["template"]

    assert template["metadata"]["labels"]["app.kubernetes.io/name"] == "kuberay-operator"
    assert deployment()["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
