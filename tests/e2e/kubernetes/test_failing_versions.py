"""Versions that cannot start: what a user reads, what goes on serving, and the way out."""

from collections.abc import Iterator
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.e2e.client_load import ask, more_answers, openai_client, steady_load
from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.harness import Checkpoint, DeployedService
from tests.e2e.kubernetes.test_life import in_thread
from tests.figures import Times
from tests.tiny import accuracy, held_out
from tools.kubernetes import Kubernetes

TENSOR = "model.layers.1.mlp.up_proj.weight"
# Long enough for several starts to fail, none of which may disturb the version that serves.
ANSWERS_MEANWHILE = 200

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def broken(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint that lacks a tensor."""
    tensors = load_file(checkpoint.weights)
    del tensors[TENSOR]
    save_file(tensors, checkpoint.weights, metadata={"format": "pt"})
    # The library writes for its own user alone.
    checkpoint.weights.chmod(0o644)
    return checkpoint


@pytest.fixture
def service(tandem: Kubernetes, checkpoint: Checkpoint) -> Iterator[DeployedService]:
    """A service of its own name; the test applies it. Its checkpoint outlives it."""
    del checkpoint
    service = DeployedService(tandem, "failing")
    yield service
    service.delete()
    service.wait_gone()


async def test_a_checkpoint_that_is_repaired_is_served_without_another_apply(
    service: DeployedService, broken: Checkpoint, times: Times
) -> None:
    with times.measure("broken checkpoint: apply → the sentence that names file and tensor"):
        service.apply(lambda document: use(document, broken))
        wait_for(lambda: names_the_tensor(service, broken), "the condition names file and tensor")

    assert service.condition("Ready")["status"] == "False"
    assert service.condition("Ready")["message"] == service.condition("ModelLoaded")["message"]

    with times.measure("the file is repaired → Ready"):
        broken.repair()
        service.wait_ready()
    async with openai_client(service.url) as client:
        question = held_out(1)[0]
        assert accuracy([question], {0: await ask(client, question.messages)}) == 1


async def test_the_old_version_serves_while_the_changed_one_does_not_start(
    service: DeployedService, broken: Checkpoint, times: Times
) -> None:
    service.apply()
    service.wait_ready()
    old = service.pod_uids()
    async with (
        openai_client(service.url) as client,
        steady_load(client, concurrency=4) as answers,
    ):
        for what, change, is_said in (
            ("model", lambda document: use(document, broken), broken_model_is_said),
            ("image", another_image, missing_image_is_said),
        ):
            with times.measure(f"a changed {what} that does not start: the sentence"):
                await in_thread(lambda change=change: service.apply(change))
                await in_thread(
                    lambda is_said=is_said: wait_for(lambda: is_said(service, broken), "it is said")
                )
            await more_answers(answers, ANSWERS_MEANWHILE)
            assert service.condition("Ready")["reason"] == "ServingPrevious"
            assert old <= service.pod_uids(), "the version that serves keeps its pods"

        # KubeRay starts a cluster for it once more, although the desired one serves already.
        with times.measure("taken back → Ready"):
            await in_thread(service.apply)
            await in_thread(service.wait_ready)
        with times.measure("… → the pods of versions that are not wanted any more have gone"):
            await in_thread(lambda: wait_for(lambda: has_one_version(service), "they have gone"))
        await more_answers(answers, ANSWERS_MEANWHILE)


def has_one_version(service: DeployedService) -> bool:
    return (len(service.pods()), len(service.pods("head"))) == (1, 1)


def use(document: dict[str, Any], checkpoint: Checkpoint) -> None:
    document["spec"]["model"]["source"] = f"file://{checkpoint.folder}"


def another_image(document: dict[str, Any]) -> None:
    document["spec"]["runtime"] = {"image": "localhost/tandem/nobody-built-it:1"}


def names_the_tensor(service: DeployedService, checkpoint: Checkpoint) -> bool:
    loaded = service.condition("ModelLoaded")
    sentence = f"{checkpoint.weights} lacks the tensor {TENSOR}"
    return (loaded.get("status"), loaded.get("message")) == ("False", sentence)


def broken_model_is_said(service: DeployedService, checkpoint: Checkpoint) -> bool:
    return names_the_tensor(service, checkpoint) and str(checkpoint.weights) in said(service)


def missing_image_is_said(service: DeployedService, _: Checkpoint) -> bool:
    return "nobody-built-it:1" in said(service)


def said(service: DeployedService) -> str:
    return str(service.condition("Ready").get("message"))
