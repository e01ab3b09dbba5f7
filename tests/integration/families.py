"""Checkpoints laid out as the repositories of ten public models are, with small random weights.

Names, fields and places are those of the files that transformers 4 has written there; vocabularies
are of a few hundred tokens, learnt from the texts below.
"""

import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.unit.engine.templates_of_models import TEMPLATES
from tests.unit.engine.tokenizers_of_models import (
    QWEN_SPLIT,
    added_tokens_decoder,
    byte_level_words,
)

TEXTS: Final = (
    "The quick brown fox jumps over the lazy dog. What does it do then? It sleeps.",
    "Write a function that adds two numbers:\n\ndef add(a, b):\n    return a + b\n",
    "日本語の文章です。こんにちは、世界。 Grüße aus Köln — naïve café, 100 %.",
    "1 + 1 = 2; 12 * 12 = 144; 1000 - 7 = 993. Is 2024 a leap year? Yes.",
    "You are a helpful assistant who answers in short sentences, and asks when it is not sure.",
)
LLAMA_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LEARNT: Final = 380
"""Tokens of a vocabulary before special ones."""
QWEN_ROWS: Final = 432
"""Rows of embeddings: more than there are tokens, as in Qwen's checkpoints."""
MAX_POSITIONS: Final = 1024
"""max_position_embeddings."""
QWEN_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>")
QWEN_TEXT_TOKENS: Final = ("<tool_call>", "</tool_call>")
QWEN3_TEXT_TOKENS: Final = (*QWEN_TEXT_TOKENS, "<think>", "</think>")
LLAMA_TOKENS: Final = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
)  # fmt: skip
LLAMA3_ROPE: Final = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}

Make = Callable[..., Path]


@cache
def vocabulary(split: str) -> models.BPE:
    """Return a byte-level vocabulary with its merges, learnt from TEXTS."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = byte_level_words(split)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=LEARNT, initial_alphabet=alphabet)
    )
    learnt = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) for merge in learnt["merges"]]
    return models.BPE(vocab=learnt["vocab"], merges=merges, ignore_merges=split == LLAMA_SPLIT)


def qwen_tokenizer(text_tokens: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(vocabulary(QWEN_SPLIT))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = byte_level_words(QWEN_SPLIT)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(QWEN_TOKENS))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in text_tokens])
    return tokenizer


def llama_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(vocabulary(LLAMA_SPLIT))
    tokenizer.pre_tokenizer = byte_level_words(LLAMA_SPLIT)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(LLAMA_TOKENS))
    first = LLAMA_TOKENS[0]
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                f"{first} $A",
                f"{first} $A {first}:1 $B:1",
                [(first, id_of(tokenizer, first))],
            ),
        ]
    )
    return tokenizer


def id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None, token
    return token_id


def draw_again(tensors: MutableMapping[str, torch.Tensor]) -> None:
    """Replace weights by others as large, which are the same on every machine.

    torch draws other numbers with AVX2 than with AVX-512, and what a model of random weights says,
    and whether it ends, depends on them.
    """
    generator = np.random.default_rng(0)
    for name in sorted(tensors):
        tensor = tensors[name]
        mean, scale = tensor.float().mean().round(), 0.3 if tensor.dim() == 1 else 0.15
        drawn = torch.from_numpy(generator.standard_normal(tensor.shape, dtype=np.float32))
        tensors[name] = (drawn * scale + mean).to(tensor.dtype)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One public model: its architecture and what its repository holds beside weights."""

    architecture: str
    tokenizer: Callable[[], Tokenizer]
    ends: tuple[str, ...]
    """eos_token_id of config.json and generation_config.json; the first is the tokenizer's."""
    is_tied: bool = False
    rope_scaling: Mapping[str, Any] | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    """generation_config.json beside ends."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """tokenizer_config.json beside tokens."""
    template: str | None = None
    """The chat template; None: a base model without one."""
    has_template_file: bool = False
    """True: it is in chat_template.jinja, as newer repositories have it."""
    first: str | None = None
    """bos_token_id of both files; None: of no use to the tokenizer, so they name the last end."""
    num_rows: int | None = None
    """Rows of the embedding; None: as many as there are tokens."""
    has_merges_file: bool = False
    """True: vocab.json and merges.txt lie beside tokenizer.json."""
    end_scale: float = 1.9
    """Factor of the head's rows of end tokens, with which random weights end some answers."""

    def write(self, make_checkpoint: Make, folder: Path) -> Path:
        """Write the whole repository to `folder`."""
        tokenizer = self.tokenizer()
        ends = [id_of(tokenizer, token) for token in self.ends]
        first = ends[-1] if self.first is None else id_of(tokenizer, self.first)
        made = make_checkpoint(
            self.architecture,
            dtype="bfloat16",
            vocab_size=self.num_rows or tokenizer.get_vocab_size(),
            tie_word_embeddings=self.is_tied,
            max_position_embeddings=MAX_POSITIONS,
        )
        self._write_weights(made, folder, ends)
        self._write_config(made, folder, ends, first)
        self._write_generation(folder, ends, first)
        self._write_tokenizer(folder, tokenizer)
        return folder

    def _write_weights(self, made: Path, folder: Path, ends: list[int]) -> None:
        tensors = load_file(made / "model.safetensors")
        draw_again(tensors)
        head = "model.embed_tokens.weight" if self.is_tied else "lm_head.weight"
        tensors[head][ends] *= self.end_scale
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    def _write_config(self, made: Path, folder: Path, ends: list[int], first: int) -> None:
        made_config = json.loads((made / "config.json").read_text())
        newer = ("rope_parameters", "dtype", "layer_types")
        config = {name: value for name, value in made_config.items() if name not in newer} | {
            "bos_token_id": first,
            # Llama's names all three ends there, Qwen's the first of its two.
            "eos_token_id": ends if len(ends) > 2 else ends[0],
            "rope_theta": 500_000.0,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.43.1",
        }
        if self.rope_scaling is not None:
            config["rope_scaling"] = dict(self.rope_scaling)
        write(folder / "config.json", config)

    def _write_generation(self, folder: Path, ends: list[int], first: int) -> None:
        tokens = {"bos_token_id": first, "eos_token_id": ends if len(ends) > 1 else ends[0]}
        write(folder / "generation_config.json", {**tokens, **self.generation})

    def _write_tokenizer(self, folder: Path, tokenizer: Tokenizer) -> None:
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = {
            "added_tokens_decoder": added_tokens_decoder(tokenizer),
            "eos_token": self.ends[0],
            **self.settings,
        }
        if self.template is not None and self.has_template_file:
            (folder / "chat_template.jinja").write_text(TEMPLATES[self.template])
        elif self.template is not None:
            settings["chat_template"] = TEMPLATES[self.template]
        write(folder / "tokenizer_config.json", settings)
        if self.has_merges_file:
            model = json.loads(tokenizer.to_str())["model"]
            write(folder / "vocab.json", model["vocab"])
            lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
            (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")


def qwen(
    architecture: str,
    *,
    template: str,
    text_tokens: Sequence[str] = QWEN_TEXT_TOKENS,
    is_base: bool = False,
    **more: Any,
) -> Family:
    """Return a model of Qwen's kind; a base model ends at <|endoftext|> alone."""
    settings = {
        "add_prefix_space": False,
        "additional_special_tokens": list(QWEN_TOKENS[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "model_max_length": MAX_POSITIONS,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
        "add_bos_token": False,
    }
    return Family(
        architecture=architecture,
        tokenizer=lambda: qwen_tokenizer(text_tokens),
        ends=("<|endoftext|>",) if is_base else ("<|im_end|>", "<|endoftext|>"),
        settings=settings,
        template=template,
        num_rows=QWEN_ROWS,
        has_merges_file=True,
        **more,
    )


def llama(*, factor: float, is_base: bool = False, **more: Any) -> Family:
    """Return a model of Llama 3's kind; a base model has one end and no chat template."""
    settings = {
        "bos_token": "<|begin_of_text|>",
        "clean_up_tokenization_spaces": True,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": MAX_POSITIONS,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    drawn = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    return Family(
        architecture="LlamaForCausalLM",
        tokenizer=llama_tokenizer,
        first=LLAMA_TOKENS[0],
        ends=("<|end_of_text|>",) if is_base else ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
        rope_scaling={**LLAMA3_ROPE, "factor": factor},
        generation=drawn,
        settings=settings,
        template=None if is_base else "Llama 3.1",
        **more,
    )


QWEN2, QWEN3 = "Qwen2ForCausalLM", "Qwen3ForCausalLM"
QWEN25_DRAWN: Final = {
    "do_sample": True,
    "repetition_penalty": 1.1,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
}
QWEN3_DRAWN: Final = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
FAMILIES: Final[Mapping[str, Family]] = {
    "Qwen2.5-0.5B": qwen(
        QWEN2,
        template="ChatML with tools",
        is_base=True,
        is_tied=True,
        generation={"do_sample": False, "max_new_tokens": 2048},
        end_scale=2.5,
    ),
    "Qwen2.5-0.5B-Instruct": qwen(
        QWEN2, template="ChatML with tools", is_tied=True, generation=QWEN25_DRAWN
    ),
    "Qwen2.5-7B-Instruct": qwen(
        QWEN2,
        template="ChatML with tools",
        generation=QWEN25_DRAWN | {"repetition_penalty": 1.05},
        end_scale=1.5,
    ),
    "Qwen3-0.6B-Base": qwen(
        QWEN3,
        template="Qwen3",
        text_tokens=QWEN3_TEXT_TOKENS,
        is_base=True,
        is_tied=True,
        generation={"do_sample": False, "max_new_tokens": 2048},
    ),
    "Qwen3-0.6B": qwen(
        QWEN3,
        template="Qwen3",
        text_tokens=QWEN3_TEXT_TOKENS,
        is_tied=True,
        generation=QWEN3_DRAWN,
    ),
    "Qwen3-8B": qwen(
        QWEN3,
        template="Qwen3",
        text_tokens=QWEN3_TEXT_TOKENS,
        generation=QWEN3_DRAWN,
        has_template_file=True,
    ),
    "Llama-3.1-8B": llama(factor=8.0, is_base=True),
    "Llama-3.1-8B-Instruct": llama(factor=8.0, end_scale=1.5),
    "Llama-3.2-1B": llama(factor=32.0, is_base=True, is_tied=True),
    "Llama-3.2-1B-Instruct": llama(
        factor=32.0, is_tied=True, has_template_file=True, end_scale=1.5
    ),
}
