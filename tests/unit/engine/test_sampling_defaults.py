"""Defaults of generation_config.json: what is read, what is refused, what the start says."""

import json
from pathlib import Path
from typing import Any

import pytest

from tandem_engine.api.errors import CheckpointError
from tandem_engine.api.sampling_defaults import SamplingDefaults
from tandem_engine.text.generation_config import in_words, read_sampling_defaults

QWEN25 = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "repetition_penalty": 1.05,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "transformers_version": "4.37.0",
}
ALL = SamplingDefaults(
    temperature=0.6, top_p=0.9, top_k=50, min_p=0.1, repetition_penalty=1.1, max_tokens=256
)


def folder_with(folder: Path, document: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(
            QWEN25,
            SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05),
            id="Qwen2.5",
        ),
        pytest.param(
            {**ALL.named(), "max_tokens": 9, "max_new_tokens": 256}, ALL, id="every parameter"
        ),
        pytest.param({"temperature": None, "top_k": 0}, SamplingDefaults(top_k=0), id="null"),
        pytest.param({"temperature": 0}, SamplingDefaults(temperature=0), id="greedy"),
        pytest.param({"do_sample": False}, SamplingDefaults(), id="do_sample has no effect"),
        pytest.param({}, SamplingDefaults(), id="nothing"),
    ],
)
def test_the_parameters_of_the_file_are_read(
    tmp_path: Path, document: dict[str, Any], expected: SamplingDefaults
) -> None:
    assert read_sampling_defaults(folder_with(tmp_path, document), "auto") == expected


def test_none_leaves_the_file_out(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {**QWEN25, "temperature": -1})

    assert read_sampling_defaults(folder, "none") == SamplingDefaults()


def test_a_checkpoint_without_the_file_has_no_defaults(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path, "auto") == SamplingDefaults()


def test_the_start_says_which_defaults_hold() -> None:
    assert in_words(SamplingDefaults(temperature=0.7, max_tokens=256)) == (
        "Where a request is silent, generation_config.json holds: temperature 0.7, max_tokens 256 "
        "(spec.model.generationConfig: none leaves it out)"
    )


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (
            {"temperature": -1},
            r"temperature is -1; it must be in \[0\.0, 100\.0\]\. Correct it, or",
        ),
        ({"top_p": 1.5}, "top_p is 1.5; it must be"),
        ({"top_k": -2}, "top_k is -2; it must be"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0, not a whole number from 1"),
        ({"temperature": "hot"}, 'temperature is "hot", not a number'),
        ({"min_p": True}, "min_p is true, not a number"),
        ({"top_k": 1.5}, "top_k is 1.5, not a whole number"),
        ([], "is not a JSON object"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_the_file(
    tmp_path: Path, document: Any, reason: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json:? {reason}"):
        read_sampling_defaults(folder_with(tmp_path, document), "auto")
