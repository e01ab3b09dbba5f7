"""Manifests that compute on cards: what `tandem validate` and `tandem serve` say of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tandem_engine.device.npu import availability
from tandem_engine.device.npu.availability import Facts
from tandem_serve.cli import app
from tests.tiny import TINY

CARD = Facts(
    package="2.13.0",
    torch="2.13.0",
    import_error=None,
    has_driver=True,
    num_cards=2,
    visible=None,
    num_usable=1,
)


def command(name: str, folder: Path, source: str = f"file://{TINY}", **spec: Any) -> Result:
    """The result of a command that reads a manifest with one card."""
    document = {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "tiny"},
        "spec": {"model": {"source": source}, "resources": {"npu": 1}, **spec},
    }
    manifest = folder / "isvc.yaml"
    manifest.write_text(yaml.safe_dump(document))
    return CliRunner().invoke(app, [name, "-f", str(manifest)])


def described(folder: Path, **changes: Any) -> str:
    """A checkpoint's description alone: tandem-tiny's with changes."""
    folder.mkdir()
    config = json.loads((TINY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return f"file://{folder}"


def test_auto_is_npu_where_a_card_is_requested(tmp_path: Path) -> None:
    done = command("validate", tmp_path, described(tmp_path / "model", head_dim=128))

    assert done.exit_code == 0
    assert "a replica chooses by its card's memory: maxSeqLen" in done.stderr
    engine = yaml.safe_load(done.stdout)["spec"]["engine"]
    assert engine["device"] == "npu"


def test_auto_is_cpu_where_none_is(tmp_path: Path) -> None:
    done = command("validate", tmp_path, resources={})

    assert yaml.safe_load(done.stdout)["spec"]["engine"]["device"] == "cpu"


def test_heads_that_attention_on_a_card_does_not_take_are_refused(tmp_path: Path) -> None:
    done = command("validate", tmp_path)

    assert done.exit_code == 1
    assert "spec.engine.device: the model's heads have" in done.stderr
    assert "attention on device npu takes heads of 128; choose a model that has" in done.stderr


def test_layers_too_wide_for_8_bits_are_refused(tmp_path: Path) -> None:
    # Gate and up are one layer for the operator.
    wide = described(tmp_path / "model", head_dim=128, intermediate_size=40_000)

    done = command("validate", tmp_path, wide, model={"source": wide, "quantization": "w8a8"})

    assert done.exit_code == 1
    assert "a layer of 80000 outputs and 192 inputs is in 8 bits, and on device npu" in done.stderr


def test_nothing_is_said_of_the_memory_of_ranks_whose_cards_are_not_known(tmp_path: Path) -> None:
    done = command(
        "validate",
        tmp_path,
        described(tmp_path / "model", head_dim=128, intermediate_size=30),
        engine={"parallelism": {"tp": 2}},
        resources={"cpu": 2, "npu": 2},
    )

    assert done.exit_code == 0, done.stderr
    assert "Memory of each rank" not in done.stderr
    assert "plain torch" not in done.stderr


def test_a_checkpoint_elsewhere_is_not_checked(tmp_path: Path) -> None:
    assert command("validate", tmp_path, "pvc://models/tiny").exit_code == 0


def test_a_service_on_this_machine_says_what_is_missing_before_ray_starts(tmp_path: Path) -> None:
    done = command("serve", tmp_path)

    assert done.exit_code == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("error: spec.engine.device: device npu needs ")
    )


def test_more_cards_than_this_machine_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "read_facts", lambda: CARD)

    done = command("serve", tmp_path, scaling={"minReplicas": 2})

    assert done.exit_code == 1
    assert (
        "spec.resources.npu: 2 replicas of 1 need 2 cards, and this machine has 1 that may be "
        "used; lower scaling.replicas"
    ) in done.stderr
