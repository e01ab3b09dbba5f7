"""The memory of a rank: what is estimated, against what is loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.api.config import EngineConfig, ParallelismConfig, Quantization
from tandem_engine.api.errors import ConfigError
from tandem_engine.convert import quantize_checkpoint
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.reference.kernels import PlainLinear
from tandem_engine.model.config import read_decoder_config
from tandem_engine.model.parameters import AnyLinear, Parameters, allocate_parameters
from tandem_engine.model.quantized import QuantizedLinear
from tandem_engine.model.rank_memory import shapes_of, step_cost
from tandem_engine.parallel.plan import ParallelShape, plan_rank
from tandem_engine.preview import StageMemory, check_ranks, preview_ranks
from tandem_engine.quantization.read import resolve_scheme

Make = Callable[..., Path]
GIB = 2**30
RUNTIME = CpuRuntime(memory_bytes=GIB, kernels="reference")  # keeps weights as they are
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
SHAPES = [
    ParallelShape(),
    ParallelShape(tp=2),
    ParallelShape(tp=4),
    ParallelShape(pp=2),
    ParallelShape(tp=2, pp=3),
    ParallelShape(tp=2, dp=2),
]


def packed_bytes(parameters: Parameters) -> int:
    """Bytes of everything that a rank holds once it is loaded, as kernels read it."""
    kept = [parameters.embedding, parameters.norm, parameters.head]
    for layer in parameters.layers:
        kept += layer.held.values()
    return sum(map(bytes_of, kept))


def bytes_of(kept: Tensor | AnyLinear | None) -> int:
    if kept is None or isinstance(kept, Tensor):
        return 0 if kept is None else kept.nbytes
    bias = 0 if kept.bias is None else kept.bias.nbytes
    if isinstance(kept, QuantizedLinear):
        return kept.num_outputs * (kept.inputs + kept.scales.itemsize) + bias
    packed = kept.finished()
    assert isinstance(packed, PlainLinear)
    return packed.weight.nbytes + bias


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("is_quantized", [False, True], ids=["float", "w8a8"])
def test_weights_are_what_a_rank_loads(
    make_checkpoint: Make, shape: ParallelShape, *, is_tied: bool, is_quantized: bool
) -> None:
    quantization: Quantization = "w8a8" if is_quantized else "auto"
    folder = make_checkpoint("Qwen3ForCausalLM", tie_word_embeddings=is_tied, **WIDE)
    model = read_decoder_config(folder)

    for rank in range(shape.world_size):
        plan = plan_rank(shape, model, rank)
        parameters = allocate_parameters(
            model,
            dtype=torch.float32,
            device="cpu",
            kernels=RUNTIME.kernels,
            scheme=resolve_scheme(quantization, folder),
            plan=plan,
        )
        shapes = shapes_of(model, folder, plan=plan, dtype="float32", quantization=quantization)

        assert shapes.num_bytes == packed_bytes(parameters)


def test_a_quantized_checkpoint_is_estimated_as_it_is(
    make_checkpoint: Make, tmp_path: Path
) -> None:
    source = make_checkpoint("Qwen2ForCausalLM", num_key_value_heads=4, **WIDE)
    quantize_checkpoint(source, tmp_path / "w8a8")

    in_float, in_8_bits = (previewed(one, tp=2)[0] for one in (source, tmp_path / "w8a8"))

    assert in_8_bits.weights < 0.6 * in_float.weights


def previewed(folder: Path, memory: int = 2 * GIB, **degrees: Any) -> list[StageMemory]:
    parallelism = ParallelismConfig(**degrees)
    config = EngineConfig(model_path=str(folder), memory_bytes=memory, parallelism=parallelism)
    return preview_ranks(config)


def test_a_rank_of_a_cut_model_has_less_weights_and_more_tokens(make_checkpoint: Make) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", **WIDE)
    (whole,), (half,) = previewed(folder, 2 * GIB), previewed(folder, 4 * GIB, tp=2)

    assert (whole.ranks, half.ranks) == ((0,), (0, 1))
    assert half.total == whole.total
    assert half.weights < 0.7 * whole.weights
    assert half.step < whole.step
    assert half.kv_tokens == pytest.approx(2 * whole.kv_tokens, rel=0.05)


def test_each_stage_is_shown_with_its_layers(make_checkpoint: Make) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", **WIDE)

    first, last = previewed(folder, 8 * GIB, pp=2, dp=2)

    assert (first.ranks, last.ranks) == ((0, 2), (1, 3))
    assert (first.layers, last.layers) == (range(2), range(2, 3))
    assert first.kv_tokens < last.kv_tokens


def test_parts_of_a_rank_are_its_memory(make_checkpoint: Make) -> None:
    (one,) = previewed(make_checkpoint("Qwen3ForCausalLM", **WIDE), tp=2, sp=True)

    assert one.weights + one.step + one.kv_cache < one.total


def test_a_rank_that_is_too_small_is_told_with_the_sum(make_checkpoint: Make) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", **WIDE)

    with pytest.raises(
        ConfigError, match=r"Rank 0's memory of 0.25 GiB does not .* set resources.memory to 1.1Gi"
    ):
        previewed(folder, GIB // 2, tp=2)


def test_a_model_that_cannot_be_cut_is_refused_with_the_sizes_that_would_do(
    make_checkpoint: Make,
) -> None:
    folder = str(make_checkpoint("Qwen3ForCausalLM", **WIDE))
    heads = read_decoder_config(folder).num_heads

    for degrees, sentence in (
        ({"tp": 3}, rf"parallelism\.tp is 3, but the model's {heads} attention heads .* into tp 1"),
        ({"pp": 4}, r"parallelism\.pp is 4, but the model has 3 layers; set pp to 3 or less"),
    ):
        parallelism = ParallelismConfig.model_validate(degrees)
        with pytest.raises(ConfigError, match=sentence):
            check_ranks(EngineConfig(model_path=folder, parallelism=parallelism))


def test_only_the_last_stage_pays_for_logits(make_checkpoint: Make) -> None:
    model = read_decoder_config(make_checkpoint("Qwen3ForCausalLM", **WIDE))
    first, last = (plan_rank(ParallelShape(pp=2), model, rank) for rank in range(2))

    assert step_cost(first, model, 2).per_row == 0
    assert step_cost(last, model, 2).per_row == 2 * 4 * model.vocab_size
