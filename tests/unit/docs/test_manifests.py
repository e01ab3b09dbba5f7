"""Manifests and settings that the docs show are taken by the code that reads them.

One with templateType Mix cuts its prompts, too, as its page says.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_operator.settings import parse_settings
from tandem_serve.api.manifest import parse_manifest
from tandem_serve.api.notes import notes
from tandem_serve.api.spec import KIND
from tests.unit.docs.pages import Block, code_blocks, markdown_files

BLOCKS = [
    block for page in markdown_files() for block in code_blocks(page) if block.language == "yaml"
]
SMALLEST = {
    "apiVersion": "serving.tandem.dev/v1alpha1",
    "kind": KIND,
    "metadata": {"name": "mine"},
    "spec": {"model": {"source": "pvc://models/mine"}},
}


def documents(block: Block) -> list[Any]:
    return list(yaml.safe_load_all("\n".join(block.lines)))


def services(block: Block) -> list[dict[str, Any]]:
    """Return the InferenceServices in a block; a bare `spec:` is a part of one."""
    found = [one for one in documents(block) if isinstance(one, dict)]
    whole = [one for one in found if one.get("kind") == KIND]
    parts = [
        SMALLEST | {"spec": SMALLEST["spec"] | one["spec"]} for one in found if [*one] == ["spec"]
    ]
    return [*whole, *parts]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_yaml_of_the_docs_is_yaml(block: Block) -> None:
    assert any(document is not None for document in documents(block))


@pytest.mark.parametrize("block", [one for one in BLOCKS if services(one)], ids=str)
def test_every_manifest_of_the_docs_is_valid(block: Block) -> None:
    for service in services(block):
        parse_manifest(yaml.safe_dump(service), folder=Path("/"))


@pytest.mark.parametrize("block", [one for one in BLOCKS if services(one)], ids=str)
def test_every_manifest_of_the_docs_that_mixes_cuts_all_prompts(block: Block) -> None:
    for service in services(block):
        spec = parse_manifest(yaml.safe_dump(service), folder=Path("/")).spec
        if spec.schedule.template_type == "Mix":
            assert not [note for note in notes(spec) if "splitStartBatchSize is" in note]


def settings_in(block: Block) -> list[dict[str, Any]]:
    return [
        one["settings"] for one in documents(block) if isinstance(one, dict) and "settings" in one
    ]


@pytest.mark.parametrize("block", [one for one in BLOCKS if settings_in(one)], ids=str)
def test_all_settings_of_the_operator_in_the_docs_are_valid(block: Block) -> None:
    for settings in settings_in(block):
        # The chart names the replicas' image where the values do not.
        replica = {"image": "tandem/replica:0"} | settings.get("replica", {})
        parse_settings(yaml.safe_dump(settings | {"replica": replica}))


def test_manifests_and_settings_were_found() -> None:
    assert len([one for one in BLOCKS if services(one)]) > 5
    assert len([one for one in BLOCKS if settings_in(one)]) > 1
