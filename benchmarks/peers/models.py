"""Makes the checkpoints that every engine loads: random weights, complete with a tokenizer."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.shapes import ModelShape
from benchmarks.serving.errors import BenchmarkError

_SEED: Final = 0
_UNKNOWN: Final = 2


def cache_folder() -> Path:
    """Default folder of models and environments: the per-user cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tandem" / "peers"


def model_folder(shape: ModelShape, folder: Path) -> Path:
    """The path of a model below the folder of models."""
    return folder / shape.name


def ensure_model(
    shape: ModelShape, folder: Path, *, progress: Callable[[str], None] = lambda _: None
) -> Path:
    """The checkpoint of `shape` below `folder`, made where it is missing or of another shape.

    Raises:
        BenchmarkError: it cannot be written.
    """
    path = model_folder(shape, folder)
    if not _is_made(shape, path):
        try:
            make_model(shape, path, progress=progress)
        except OSError as error:
            raise BenchmarkError(
                f"The model {shape.name} cannot be written to {path}: {error.strerror}; "
                "name another folder with --models."
            ) from None
    return path


def make_model(
    shape: ModelShape, path: Path, *, progress: Callable[[str], None] = lambda _: None
) -> int:
    """Write a checkpoint in bfloat16; the same shape gives the same files. Return its parameters.

    The tokenizer has one word a token, t0, t1 …; rows are sent as token ids, so it only has to
    load.
    """
    # The rest of this module answers without torch.
    import torch  # noqa: PLC0415

    from benchmarks.scheduling.model import write_checkpoint  # noqa: PLC0415

    path.mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").unlink(missing_ok=True)
    _write(path / "tokenizer.json", _tokenizer(shape))
    _write(path / "tokenizer_config.json", _tokenizer_config())
    _write(path / "generation_config.json", _generation_config())
    # The weights come last: where they are, the rest is.
    return write_checkpoint(
        path, shape.config(), dtype=torch.bfloat16, seed=_SEED, progress=progress
    )


def _is_made(shape: ModelShape, path: Path) -> bool:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(config == shape.config()) and (path / "model.safetensors").is_file()


def _tokenizer(shape: ModelShape) -> dict[str, Any]:
    special = [
        {
            "id": number,
            "content": f"t{number}",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number in range(_UNKNOWN + 1)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{number}": number for number in range(shape.vocab_size)},
            "unk_token": f"t{_UNKNOWN}",
        },
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "t0",
        "eos_token": "t1",
        "unk_token": f"t{_UNKNOWN}",
        "clean_up_tokenization_spaces": False,
    }


def _generation_config() -> dict[str, Any]:
    return {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
