"""Fixtures of all tests: checkpoints of tiny random models.

Use the fixture `make_checkpoint`; it saves a model of transformers, which is thereby also the
reference that logits and tokens are compared with.
"""

import gc
import itertools
import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Threads of torch that wait for a busy core spin, and take it from the others: beside three busy
# processes the same tests took 37 s with one thread, and 142 s with two.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test asserts a time, and a busy machine is no reason to fail. A fixture may stand for all
# examples of a test: such ones hold kernels and checkpoints, which no example changes.
PATIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# The same examples in every run, so that a red test is the change's: many of them would find no
# more than few. What has failed once is kept as an @example beside its test.
settings.register_profile("same", PATIENT, derandomize=True, max_examples=25)
# New ones (`make test-all`); a failure prints the @example to keep.
settings.register_profile("drawn", PATIENT, max_examples=200)
settings.load_profile("same")

pytest_plugins = ("tests.figures", "tests.cluster_fixture")


def pytest_configure() -> None:
    """Collect no garbage while tests are collected: what comes then stays to the end.

    To walk through it again and again took a third of the time of collection.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but walk through nothing that is there already."""
    gc.freeze()
    gc.enable()


SPECIAL_TOKENS = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
NUM_BYTES = 256
VOCAB_SIZE = 272  # 256 bytes and 5 special tokens, up to the next multiple of 16
END_OF_TEXT, END = NUM_BYTES, NUM_BYTES + 4  # ids of special tokens
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": END,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_checkpoint(architecture, *, dtype, max_shard_size, seed, **overrides) -> folder`.

    `architecture` is a class of transformers, such as "Qwen3ForCausalLM"; `overrides` go to its
    configuration. Equal arguments give the same folder: copy it before damaging it.
    """
    made: dict[str, Path] = {}

    def make(
        architecture: str,
        *,
        dtype: str = "float32",
        max_shard_size: str = "1GB",
        seed: int = 0,
        **overrides: Any,
    ) -> Path:
        arguments = [architecture, dtype, max_shard_size, seed, sorted(overrides.items())]
        key = json.dumps(arguments)
        if key not in made:
            folder = tmp_path_factory.mktemp(architecture)
            model = _random_model(architecture, {**SHAPE, **overrides}, seed)
            model.to(getattr(import_module("torch"), dtype))
            model.save_pretrained(folder, max_shard_size=max_shard_size)
            _save_tokenizer(folder)
            made[key] = folder
        return made[key]

    return make


def _random_model(architecture: str, shape: dict[str, Any], seed: int) -> Any:
    # Heavy, and not needed by most tests.
    torch, transformers = import_module("torch"), import_module("transformers")
    model_class = getattr(transformers, architecture)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = model_class(model_class.config_class(**shape))
        # The usual start (norms 1, biases 0, small weights) would hide a norm or bias that is left
        # out, and give logits that are almost alike.
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.dim() == 1 else 0.15
            parameter.normal_(mean=1.0 if name.endswith("norm.weight") else 0.0, std=scale)
    return model


def _save_tokenizer(folder: Path) -> None:
    """One token for each byte, in the order of the bytes, then the special tokens."""
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    added = [
        {
            "id": NUM_BYTES + number,
            "content": token,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for number, token in enumerate(SPECIAL_TOKENS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "decoder": {**byte_level, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def byte_symbols() -> list[str]:
    """The visible character that stands for each byte in a byte-level vocabulary (GPT-2's)."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(0x100)
    return [chr(byte if byte in visible else next(spare)) for byte in range(NUM_BYTES)]
