"""Micro-batches in the settings: what is refused, why, and what would do; and by the checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tandem_engine.api.config import EngineConfig
from tandem_engine.api.errors import ConfigError
from tandem_engine.build import build_engine
from tandem_engine.preview import check_ranks
from tests.tiny import TINY

TWO = {"tp": 2}
ON = {"micro_batch": True}
Write = Callable[..., str]


def config(folder: Path | str = "/m", **settings: Any) -> EngineConfig:
    written = {"stream_options": ON, "parallelism": TWO, "num_threads": 2, **settings}
    return EngineConfig.model_validate({"model_path": str(folder), **written})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"ccl": {"enable_mc2": True}},
            "ccl.enableMc2 true excludes streamOptions.microBatch true: .*leave one of the two out",
        ),
        (
            {"ccl": {"enable_mc2": True}, "stream_options": {}},
            "ccl.enableMc2 true needs cards, .*; leave enableMc2 out, or set device: npu",
        ),
        ({"graph": "python"}, "graph python excludes streamOptions.microBatch true: "),
        ({"graph": "python", "stream_options": {}}, "graph python needs cards, .*leave graph out"),
        (
            {"parallelism": {"pp": 2}},
            "microBatch true needs ranks that communicate within a layer, and tp is 1: .*set "
            "parallelism.tp to 2 or more, or set unsafeCombinations: true",
        ),
        (
            {"quantization": "none"},
            "microBatch true is tested with linear layers in 8 bits only, and quantization is none"
            "; set quantization: w8a8, .*or set unsafeCombinations: true",
        ),
        ({"stream_options": {"microbatch": True}}, "did you mean 'microBatch'?"),
    ],
)
def test_a_refusal_says_why_and_what_would_do(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        config(**settings)


def test_what_is_not_tested_can_be_lifted_and_what_is_wrong_cannot() -> None:
    lifted = config(parallelism={}, quantization="none", unsafe_combinations=True)

    assert lifted.stream_options.micro_batch
    for wrong in ({"ccl": {"enable_mc2": True}}, {"graph": "python"}):
        with pytest.raises(ValidationError, match=r"excludes streamOptions\.microBatch true"):
            config(**wrong, unsafe_combinations=True)


@pytest.mark.parametrize("world", [{"worldSize": 2}, {"worldSize": 4, "pp": 2}, {"tp": 2, "dp": 2}])
def test_ranks_of_tp_are_counted_however_they_are_written(world: dict[str, int]) -> None:
    assert config(parallelism=world, num_threads=4).parallelism.num_tp == 2


@pytest.fixture
def write_description(tmp_path: Path) -> Write:
    """Write the description of tandem-tiny with some of it changed; no weights."""

    def write(**changes: Any) -> str:
        description = json.loads((TINY / "config.json").read_text()) | changes
        (tmp_path / "config.json").write_text(json.dumps(description))
        return str(tmp_path)

    return write


def test_a_checkpoint_in_float_is_refused(write_description: Write) -> None:
    folder = write_description()

    with pytest.raises(ConfigError, match=r"the checkpoint is in float, .*quantization w8a8"):
        check_ranks(config(folder))
    check_ranks(config(folder, quantization="w8a8"))
    check_ranks(config(folder, unsafe_combinations=True))
    check_ranks(config(folder, stream_options={}))


def test_a_model_of_another_type_is_refused(write_description: Write) -> None:
    folder = write_description(architectures=["LlamaForCausalLM"], model_type="llama")
    quantized = config(folder, quantization="w8a8")

    with pytest.raises(ConfigError, match=r"of type llama, .* with qwen2 and qwen3 only; leave"):
        check_ranks(quantized)
    check_ranks(config(folder, unsafe_combinations=True))


def test_a_replica_does_not_start_with_what_is_not_tested() -> None:
    """Where the manifest could not be checked, as with a volume of Kubernetes."""
    with pytest.raises(ConfigError, match=r"streamOptions\.microBatch is true, but the checkpoint"):
        build_engine(config(TINY))
