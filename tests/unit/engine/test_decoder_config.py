"""config.json in both of its layouts, and what is refused in it."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tandem_engine.api.errors import CheckpointError
from tandem_engine.model.config import DecoderConfig, read_decoder_config
from tandem_engine.model.rope import (
    RopeDefault,
    RopeDynamic,
    RopeLinear,
    RopeLlama3,
    RopeLong,
    RopeYarn,
)

# As published with Qwen2.5-0.5B, in the layout of transformers 4.
QWEN25: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LLAMA31: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
LLAMA31_ROPE = RopeLlama3(
    theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)


def read(folder: Path, document: dict[str, Any], **changes: Any) -> DecoderConfig:
    (folder / "config.json").write_text(json.dumps({**document, **changes}))
    return read_decoder_config(folder)


def test_the_layout_up_to_transformers_4_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN25) == DecoderConfig(
        architecture="Qwen2ForCausalLM",
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_layers=24,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        rms_norm_eps=1e-6,
        max_position_embeddings=32768,
        rope=RopeDefault(theta=1e6),
        tie_word_embeddings=True,
        qkv_bias=True,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        dtype="bfloat16",
    )


def test_the_layout_of_transformers_5_says_the_same(tmp_path: Path) -> None:
    old = read(tmp_path, LLAMA31)
    rope = {**LLAMA31["rope_scaling"], "rope_theta": LLAMA31["rope_theta"]}
    moved = {"rope_scaling", "rope_theta", "torch_dtype"}
    document = {key: value for key, value in LLAMA31.items() if key not in moved}

    new = read(tmp_path, document, rope_parameters=rope, dtype="bfloat16")

    assert new == old
    assert new.rope == LLAMA31_ROPE


@pytest.mark.parametrize(
    "architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM"]
)
def test_what_is_absent_is_what_transformers_takes(tmp_path: Path, architecture: str) -> None:
    shape = {
        "vocab_size": 100,
        "hidden_size": 256,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128,
    }

    config = read(tmp_path, shape, architectures=[architecture])

    expected = getattr(import_module("transformers"), architecture).config_class(**shape)
    assert config.rms_norm_eps == expected.rms_norm_eps
    assert config.head_dim == getattr(expected, "head_dim", None) or 256 // 4
    assert config.tie_word_embeddings == expected.tie_word_embeddings
    assert config.rope == RopeDefault(theta=expected.rope_parameters["rope_theta"])
    assert config.dtype is None


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        pytest.param(None, RopeDefault(theta=5e5), id="null"),
        pytest.param({"type": "default"}, RopeDefault(theta=5e5), id="default by its old name"),
        pytest.param(
            {"type": "linear", "factor": 2}, RopeLinear(theta=5e5, factor=2.0), id="linear"
        ),
        pytest.param(
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            RopeYarn(theta=5e5, factor=4.0, original_max_position_embeddings=32768),
            id="yarn",
        ),
        pytest.param(
            {"rope_type": "yarn", "original_max_position_embeddings": 32768},
            RopeYarn(theta=5e5, factor=4.0, original_max_position_embeddings=32768),
            id="yarn without a factor: as the lengths say",
        ),
        pytest.param(
            {"type": "dynamic", "factor": 2},
            RopeDynamic(theta=5e5, factor=2.0, max_position_embeddings=131072),
            id="dynamic",
        ),
        pytest.param(
            {
                "type": "longrope",
                "short_factor": [1] * 64,
                "long_factor": [2.5] * 64,
                "original_max_position_embeddings": 32768,
            },
            RopeLong(
                theta=5e5,
                short_factor=(1.0,) * 64,
                long_factor=(2.5,) * 64,
                factor=4.0,
                original_max_position_embeddings=32768,
            ),
            id="longrope",
        ),
    ],
)
def test_rope_scaling_is_read(
    tmp_path: Path, scaling: dict[str, Any] | None, expected: object
) -> None:
    assert read(tmp_path, LLAMA31, rope_scaling=scaling).rope == expected


LONG_FACTORS = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        pytest.param(None, 32768, id="none"),
        pytest.param({"type": "linear", "factor": 2}, 65536, id="linear"),
        pytest.param({"type": "dynamic", "factor": 1.5}, 49152, id="dynamic"),
        pytest.param(
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            131072,
            id="Qwen2.5's YaRN, beside the length before it",
        ),
        pytest.param({"type": "yarn", "factor": 4.0}, 131072, id="YaRN without a length"),
        pytest.param(
            {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096},
            32768,
            id="YaRN beside the length after it",
        ),
        pytest.param(
            {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096},
            32768,
            id="YaRN that says less than the checkpoint",
        ),
        pytest.param(
            {"type": "longrope", "original_max_position_embeddings": 4096, **LONG_FACTORS},
            32768,
            id="longrope: the length after it",
        ),
        pytest.param(
            {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "type": "llama3"},
            32768,
            id="Llama 3.1: the length after it",
        ),
    ],
)
def test_the_longest_sequence_counts_the_rope_scaling_in(
    tmp_path: Path, scaling: dict[str, Any] | None, longest: int
) -> None:
    assert read(tmp_path, QWEN25, rope_scaling=scaling).max_position_embeddings == longest


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param(
            {"architectures": ["MambaForCausalLM"]},
            "the architecture MambaForCausalLM is not known; known are "
            "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
            id="unknown architecture",
        ),
        pytest.param({"architectures": None}, "architectures is missing", id="no architecture"),
        pytest.param({"hidden_size": None}, "hidden_size is missing", id="missing size"),
        pytest.param(
            {"hidden_size": "896"},
            'hidden_size is "896", not a whole number from 1 to 16777216',
            id="size of a wrong type",
        ),
        pytest.param(
            {"num_hidden_layers": 10**12},
            "num_hidden_layers is 1000000000000, not a whole number from 1 to 16777216",
            id="more layers than any memory holds",
        ),
        pytest.param(
            {"num_attention_heads": 2**20, "num_key_value_heads": 1, "head_dim": 2**10},
            "1048576 attention heads of 1024 are 1073741824 wide, which must be at most 16777216",
            id="heads too wide together",
        ),
        pytest.param(
            {"num_key_value_heads": 3},
            "14 attention heads cannot share 3 key-value heads evenly",
            id="uneven heads",
        ),
        pytest.param(
            {"use_sliding_window": True, "max_window_layers": 21},
            "the model attends in a sliding window, which is not computed",
            id="sliding window",
        ),
        pytest.param(
            {"layer_types": ["full_attention", "sliding_attention"]},
            "the model attends in a sliding window, which is not computed",
            id="sliding window in some layers",
        ),
        pytest.param(
            {"rope_scaling": {"rope_type": "mrope", "mrope_section": [16, 24, 24]}},
            'the rope type "mrope" is not computed; '
            "computed are default, dynamic, linear, llama3, longrope and yarn",
            id="rope of images",
        ),
        pytest.param(
            {"rope_scaling": {"type": "yarn", "factor": 1e30}},
            "max_position_embeddings, rope scaling counted in, is 3.2768e+34; "
            "it must be at most 4294967295",
            id="rope that scales without bound",
        ),
        pytest.param(
            {"rope_scaling": {"type": "linear", "factor": 10**400}},
            f"rope_scaling.factor is 1{'0' * 400}, not a number above 0",
            id="a number that no float is",
        ),
        pytest.param(
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "rope_scaling.short_factor is [1.0], not a list of 32 numbers above 0",
            id="too few factors",
        ),
        pytest.param(
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "rope_theta": 1.0}},
            "rope_theta is 1.0; YaRN needs one above 1",
            id="a ramp without an end",
        ),
        pytest.param(
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling.low_freq_factor is missing",
            id="incomplete rope",
        ),
        pytest.param(
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor is 0.5, which is not computed; only 1 is",
            id="partial rope",
        ),
        pytest.param(
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.5}},
            "rope_scaling.partial_rotary_factor is not 1; only whole heads are rotated",
            id="partial rope in the object",
        ),
        pytest.param(
            {"hidden_act": "gelu"},
            'hidden_act is "gelu", which is not computed; only "silu" is',
            id="activation",
        ),
        pytest.param(
            {"model_type": "mistral"},
            'model_type is "mistral", which is not the architecture\'s, qwen2',
            id="another model's type",
        ),
        pytest.param(
            {"final_logit_softcapping": 30.0},
            "final_logit_softcapping is 30.0, which is not computed",
            id="a cap of logits",
        ),
        pytest.param(
            {"torch_dtype": "float64"},
            'dtype is "float64", not one of bfloat16, float16, float32',
            id="dtype",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_file_and_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, QWEN25, **changes)

    assert str(caught.value) == f"{tmp_path / 'config.json'}: {reason}"


@pytest.mark.parametrize("junk", [None, [], {}, "x", "", -1, 0, 1.5, True, [[]], float("nan")])
@pytest.mark.parametrize("key", [*LLAMA31, "head_dim", "rope_parameters"])
def test_junk_is_refused_or_means_nothing(tmp_path: Path, key: str, junk: Any) -> None:
    try:
        config = read(tmp_path, LLAMA31, **{key: junk})
    except CheckpointError as error:
        assert str(tmp_path / "config.json") in str(error)  # noqa: PT017 - either may be
    else:
        assert config.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(None, "does not exist; a checkpoint is a folder with config.json in it"),
        pytest.param(b'{"architectures": [', "is not JSON: "),
        pytest.param(b"\xff\xfe\x00", "is not JSON: "),
        pytest.param(b"[]", "is not a JSON object"),
    ],
)
def test_a_missing_or_garbled_file_is_named(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(CheckpointError) as caught:
        read_decoder_config(tmp_path)

    assert str(caught.value).startswith(f"{path} {reason}")


def test_what_transformers_saves_today_is_read(make_checkpoint: Callable[..., Path]) -> None:
    rope = {**LLAMA31["rope_scaling"], "rope_theta": LLAMA31["rope_theta"]}

    config = read_decoder_config(make_checkpoint("LlamaForCausalLM", rope_parameters=rope))

    assert config.rope == LLAMA31_ROPE
    assert (config.hidden_size, config.head_dim, config.num_kv_heads) == (64, 16, 2)
    assert config.dtype == "float32"
