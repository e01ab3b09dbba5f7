"""Monitoring takes every namespace's monitors, with images and versions that are pinned."""

import pytest

from tools.cluster import keda, monitoring


@pytest.mark.parametrize(
    ("module", "release"),
    [("v0.315.0", "v3.15.0"), ("v0.316.2", "v3.16.2")],
)
def test_the_release_of_a_module(module: str, release: str) -> None:
    assert monitoring.prometheus_version(module) == release


@pytest.mark.parametrize("kind", ["podMonitor", "serviceMonitor", "rule"])
def test_the_objects_of_every_namespace_are_selected(kind: str) -> None:
    spec = monitoring.prometheus()["spec"]

    assert spec[f"{kind}Selector"] == spec[f"{kind}NamespaceSelector"] == {}


def test_every_image_has_the_version_of_its_module() -> None:
    images = [*monitoring.images().values(), *keda.images().values()]

    assert len({image.reference for image in images}) == len(images)
    assert all(image.reference.rpartition(":")[2].startswith("v") for image in images)
