"""The hand-over on the streams of a device gives what halves in turn give."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.overlap.card import CardBenchmark, CardWork, run_card
from benchmarks.serving.errors import BenchmarkError
from tandem_engine.device.stream_layouts import StreamsBy

SMALL = CardWork(rows=16, width=32, intermediate=64, num_layers=3, dtype=torch.float32)
DEVICES = (
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    ),
)


@pytest.mark.parametrize("by", StreamsBy)
@pytest.mark.parametrize("copies", [0.5, 2.25])
@pytest.mark.parametrize("device", DEVICES)
def test_halves_that_overlap_give_what_halves_in_turn_give(
    device: str, copies: float, by: StreamsBy
) -> None:
    found = CardBenchmark(SMALL, torch.device(device)).measure(copies, by, rounds=2)

    assert found.is_equal
    assert found.in_turn.exposed_s == pytest.approx(found.in_turn.communication_s)


def test_the_document_has_a_row_for_each_share_and_layout(tmp_path: Path) -> None:
    run_card(SMALL, "cpu", shares=(0.5, 1.0), rounds=1, out=tmp_path)

    document = json.loads((tmp_path / "card.json").read_text())
    assert [row["layout"] for row in document["figures"]] == ["kind", "half"] * 2


@pytest.mark.parametrize("device", ["cuda:99", "tpu"])
def test_a_device_that_there_is_not_is_one_sentence(device: str) -> None:
    with pytest.raises(BenchmarkError, match=f"--device {device} cannot be used: "):
        run_card(SMALL, device, shares=(1.0,), rounds=1, out=None)
