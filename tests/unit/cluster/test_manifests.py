"""Files of a module are put into a namespace."""

from tools.cluster.manifests import place


def test_what_has_a_namespace_gets_another() -> None:
    role = place({"kind": "Role", "metadata": {"name": "leader"}}, "there")

    assert role["metadata"]["namespace"] == "there"


def test_what_has_none_stays_as_it_is_but_for_its_subjects() -> None:
    binding = place(
        {"kind": "ClusterRoleBinding", "metadata": {"name": "b"}, "subjects": [{"name": "s"}]},
        "there",
    )

    assert binding["metadata"] == {"name": "b"}
    assert binding["subjects"] == [{"name": "s", "namespace": "there"}]
