"""The end tokens of a checkpoint: all that its files name, or what the setting says."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, GenerationConfig

from tandem_engine.api.errors import CheckpointError, ConfigError
from tandem_engine.text.codec import load_codec
from tandem_engine.text.end_tokens import EndTokens, read_end_tokens

WORDS = ("a", "b", "<end>", "<turn>", "<call>", "</s>")
VOCAB_SIZE = 5
"""One less than the tokenizer has: </s> is no token of the model."""


def checkpoint(
    folder: Path,
    *,
    config: Any = None,
    generation: Any = None,
    tokenizer: dict[str, Any] | None = None,
    special_tokens: dict[str, Any] | None = None,
) -> Path:
    """Write the files that name ends; None: that file, or its field, is not there."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    written = Tokenizer(models.WordLevel(vocabulary))
    written.save(str(folder / "tokenizer.json"))
    ends = {} if config is None else {"eos_token_id": config}
    write(folder / "config.json", {"vocab_size": VOCAB_SIZE, **ends})
    if generation is not None:
        write(folder / "generation_config.json", {"eos_token_id": generation})
    if tokenizer is not None:
        write(folder / "tokenizer_config.json", tokenizer)
    if special_tokens is not None:
        write(folder / "special_tokens_map.json", special_tokens)
    return folder


def write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document))


def read(folder: Path, setting: tuple[int, ...] | None = None) -> EndTokens:
    return read_end_tokens(folder, load_codec(folder), setting=setting)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"config": 2}, {2}, id="config.json"),
        pytest.param({"generation": [3, 4]}, {3, 4}, id="generation_config.json"),
        pytest.param({"tokenizer": {"eos_token": "<end>"}}, {2}, id="the tokenizer"),
        pytest.param({"config": 2, "generation": 3}, {2, 3}, id="two that differ"),
        pytest.param(
            {"config": 2, "generation": [3, 2], "tokenizer": {"eos_token": "<call>"}},
            {2, 3, 4},
            id="all three",
        ),
        pytest.param({"tokenizer": {"eos_token": {"content": "<end>"}}}, {2}, id="an object"),
        pytest.param({"config": 2, "tokenizer": {"eos_token": "</s>"}}, {2}, id="beyond the model"),
        pytest.param({"config": 2, "tokenizer": {"eos_token": "?"}}, {2}, id="no such token"),
        pytest.param({"config": 0}, {0}, id="the first token"),
        pytest.param({}, set(), id="none"),
        pytest.param(
            {"tokenizer": {"eos_token": "<end>"}, "special_tokens": {"eos_token": "<turn>"}},
            {3},
            id="an old tokenizer: its map of special tokens",
        ),
        pytest.param(
            {
                "tokenizer": {"eos_token": "<end>", "added_tokens_decoder": {}},
                "special_tokens": {"eos_token": "<turn>"},
            },
            {2},
            id="a newer tokenizer: its settings",
        ),
    ],
)
def test_every_end_that_a_file_names_ends_an_answer(
    tmp_path: Path, files: dict[str, Any], expected: set[int]
) -> None:
    assert read(checkpoint(tmp_path, **files)).ids == expected


def test_none_of_the_ends_of_transformers_is_left_out(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, config=2, generation=[3], tokenizer={"eos_token": "<call>"})

    ids = read(folder).ids

    assert {*GenerationConfig.from_pretrained(folder).eos_token_id} <= ids
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder / "tokenizer_config.json", settings | {"tokenizer_class": "TokenizersBackend"})
    assert AutoTokenizer.from_pretrained(folder).eos_token_id in ids


def test_the_start_says_which_file_names_which_end(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, config=2, generation=[3, 2], tokenizer={"eos_token": "<end>"})

    words = read(folder).in_words(load_codec(folder))

    assert words == (
        "Answers end at the tokens 2 <end> (config.json, generation_config.json, "
        "tokenizer_config.json); 3 <turn> (generation_config.json)"
    )


def test_the_start_says_that_no_token_ends_an_answer(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)

    words = read(folder).in_words(load_codec(folder))

    assert words.startswith("No token ends an answer")
    assert "spec.model.eosTokenIds" in words


def test_the_setting_holds_in_place_of_the_files(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, config=2, generation=3)

    ends = read(folder, (4, 1))

    assert ends.ids == {4, 1}
    assert "4 <call> (spec.model.eosTokenIds)" in ends.in_words(load_codec(folder))


def test_a_setting_that_is_no_token_of_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eosTokenIds names the token 5; .* are 0 to 4\."):
        read(checkpoint(tmp_path), (2, 5))


@pytest.mark.parametrize("value", ["</s>", [2, 10**9], -1, True, [2, None]])
@pytest.mark.parametrize("file", ["config", "generation"])
def test_what_is_no_token_is_refused_with_the_file(tmp_path: Path, file: str, value: Any) -> None:
    folder = checkpoint(tmp_path, **{file: value})

    with pytest.raises(CheckpointError, match=rf"{file}\S*\.json: eos_token_id is .*, not a token"):
        read(folder)
