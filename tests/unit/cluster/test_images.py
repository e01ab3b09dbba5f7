"""Configuration of an image."""

from tools.cluster.images import Image, image_config, kuberay_image


def test_an_image_names_its_layer_its_program_and_its_user() -> None:
    image = Image("localhost/x:1", ("/x",), user="65532:65532")

    written = image_config(image, "ab" * 32, "arm64")

    assert written["rootfs"]["diff_ids"] == ["sha256:" + "ab" * 32]
    assert written["config"]["Entrypoint"] == ["/x"]
    assert written["config"]["User"] == "65532:65532"
    assert written["architecture"] == "arm64"


def test_kuberays_image_has_the_version_of_its_module() -> None:
    assert kuberay_image().reference.startswith("localhost/tandem/kuberay:v1.")
