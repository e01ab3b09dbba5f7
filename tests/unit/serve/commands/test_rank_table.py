"""`tandem validate` of several ranks: the checkpoint decides, and each rank's memory is shown."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tandem_serve.cli import app

TINY = Path(__file__).parents[4] / "examples" / "tandem-tiny"


def validated(
    tmp_path: Path, parallelism: str, source: str = f"file://{TINY}", more: str = ""
) -> Result:
    manifest = tmp_path / "isvc.yaml"
    manifest.write_text(
        f"""
apiVersion: serving.tandem.dev/v1alpha1
kind: InferenceService
metadata: {{name: tiny}}
spec:
  model: {{source: "{source}"}}
  engine: {{parallelism: {parallelism}{more}}}
  resources: {{cpu: 4, memory: 6Gi}}
"""
    )
    return CliRunner().invoke(app, ["validate", "-f", str(manifest)])


def test_each_stage_is_a_line_beside_the_manifest(tmp_path: Path) -> None:
    done = validated(tmp_path, "{worldSize: 4, pp: 2}")

    assert done.exit_code == 0
    assert "worldSize: 4" in done.stdout
    assert "tp: 2" in done.stdout
    assert "largest step" not in done.stdout
    head, first, last = done.stderr.splitlines()[-3:]
    assert head.split() == [
        "ranks",
        "layers",
        "memory",
        "weights",
        *["largest", "step", "KV", "cache"],
    ]
    size = r"[0-9.]+ [MG]iB"
    line = rf"(\S+) +(\S+) +1.5 GiB +{size} +{size} \(\d+ tokens\) +{size} \(\d+ tokens\)"
    assert [re.match(line, one).groups() for one in (first, last)] == [  # type: ignore[union-attr]
        ("0-1", "0-1"),
        ("2-3", "2-3"),
    ]


@pytest.mark.parametrize(
    ("parallelism", "sentence"),
    [
        (
            "{tp: 3}",
            "spec.engine.parallelism.tp is 3, but the model's 2 key-value heads can neither",
        ),
        ("{pp: 2, tp: 3, worldSize: 6}", "resources.cpu 4 leaves some of the 6 ranks"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_before_anything_is_printed(
    tmp_path: Path, parallelism: str, sentence: str
) -> None:
    done = validated(tmp_path, parallelism)

    assert done.exit_code == 1
    assert not done.stdout
    assert sentence in done.stderr


@pytest.mark.parametrize("source", ["pvc://models/tiny", "file:///no/such/folder"])
def test_a_checkpoint_elsewhere_is_said_not_to_have_been_read(tmp_path: Path, source: str) -> None:
    done = validated(tmp_path, "{tp: 3}", source)

    assert done.exit_code == 0
    assert f"the checkpoint {source} is not on this machine" in done.stderr


MICRO_BATCH = ", streamOptions: {microBatch: true}"


def test_micro_batches_of_a_checkpoint_in_float_are_refused(tmp_path: Path) -> None:
    done = validated(tmp_path, "{tp: 2}", more=MICRO_BATCH)

    assert done.exit_code == 1
    assert not done.stdout
    assert "spec.engine.streamOptions.microBatch is true, but the checkpoint is in" in done.stderr


def test_micro_batches_that_are_not_tested_are_shown(tmp_path: Path) -> None:
    done = validated(tmp_path, "{tp: 2}", more=f"{MICRO_BATCH}, unsafeCombinations: true")

    assert done.exit_code == 0
    assert "streamOptions:\n      microBatch: true\n" in done.stdout
    assert "unsafeCombinations: true\n" in done.stdout


def test_micro_batches_of_a_checkpoint_elsewhere_are_said_not_to_be_checked(tmp_path: Path) -> None:
    done = validated(tmp_path, "{tp: 2}", "pvc://models/tiny", MICRO_BATCH)

    assert done.exit_code == 0
    assert "tp, pp and microBatch were not checked against it" in " ".join(done.stderr.split())


def test_one_rank_has_no_table(tmp_path: Path) -> None:
    done = validated(tmp_path, "{dp: -1}", "pvc://models/tiny")

    assert "Memory of each rank" not in done.stderr
    assert "not on this machine" not in done.stderr


def with_sizes(folder: Path, **sizes: int) -> str:
    """A checkpoint's description alone, of tandem-tiny with other sizes."""
    described = json.loads((TINY / "config.json").read_text())
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(described | sizes))
    return f"file://{folder}"


def test_a_share_that_the_kernels_do_not_compute_is_noted_with_sizes_that_they_do(
    tmp_path: Path,
) -> None:
    done = validated(tmp_path, "{tp: 2}", with_sizes(tmp_path / "odd", intermediate_size=30))

    assert done.exit_code == 0
    assert (
        "note: steps are computed in plain torch, and take several times as long as with the CPU's "
        "kernels: in the share of each of 2 ranks intermediate_size is 15, and in float it must be "
        "a multiple of 2; tp 1 avoids that"
    ) in done.stderr


def test_shares_that_the_kernels_compute_are_not_noted(tmp_path: Path) -> None:
    assert "plain torch" not in validated(tmp_path, "{tp: 2}").stderr
