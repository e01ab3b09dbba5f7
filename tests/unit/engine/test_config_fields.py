"""Every field of config.json is computed, refused unless it is neutral, or has no effect."""

import json
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

from tandem_engine.api.errors import CheckpointError
from tandem_engine.documents import Fields
from tandem_engine.model import config as module
from tandem_engine.model.config import FAMILIES, read_decoder_config
from tandem_engine.model.not_computed import NEUTRAL

WITHOUT_EFFECT: Final = {
    # Of training, and of outputs that are no tokens.
    "attention_dropout",
    "initializer_range",
    "pretraining_tp",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "problem_type",
    "id2label",
    "label2id",
    # How transformers computes, not what.
    "chunk_size_feed_forward",
    "use_cache",
    # Notes of the program that has written the file.
    "transformers_version",
    "_name_or_path",
    # The window, without which use_sliding_window and layer_types have none.
    "sliding_window",
    # The tokenizer says where a prompt begins, and batches are not padded.
    "bos_token_id",
    "pad_token_id",
}
ELSEWHERE: Final = {"eos_token_id"}
"""Read with the other files that name ends: text/end_tokens.py."""


class Noted(dict[str, Any]):
    """A config.json that notes which fields are asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def document(architecture: str) -> dict[str, Any]:
    """All fields that transformers knows of an architecture, at its defaults."""
    made = getattr(import_module("transformers"), architecture).config_class()
    values: dict[str, Any] = {
        field.name: getattr(made, field.name) for field in fields(made)
    } | made.to_dict()
    return {**values, "architectures": [architecture]}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_each_field_of_transformers_was_decided_about(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, architecture: str
) -> None:
    known = document(architecture)
    # A list of layer_types goes before what says the same of all layers.
    read = [Noted(known), Noted({**known, "layer_types": None})]
    for noted in read:
        made = Fields(tmp_path / "config.json", noted)
        monkeypatch.setattr(module, "read_config", lambda _, made=made: made)
        read_decoder_config(tmp_path)

    asked = read[0].asked | read[1].asked
    undecided = known.keys() - asked - WITHOUT_EFFECT - ELSEWHERE
    assert not undecided, "compute it, add it to NEUTRAL, or say here why it has no effect"


def test_nothing_that_is_read_is_said_to_have_no_effect() -> None:
    assert not WITHOUT_EFFECT & NEUTRAL.keys()


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("name", NEUTRAL)
def test_a_field_that_is_not_computed_is_refused_by_name_and_neutral_values_are_taken(
    tmp_path: Path, architecture: str, name: str
) -> None:
    path = tmp_path / "config.json"
    sound = document(architecture)
    path.write_text(json.dumps(sound))
    expected = read_decoder_config(tmp_path)

    for neutral in (None, *NEUTRAL[name]):
        path.write_text(json.dumps({**sound, name: neutral}))
        assert read_decoder_config(tmp_path) == expected
    path.write_text(json.dumps({**sound, name: 7.5}))
    with pytest.raises(CheckpointError) as caught:
        read_decoder_config(tmp_path)

    assert str(caught.value).startswith(f"{path}: {name} is 7.5, which is not computed")


@pytest.mark.parametrize(("first", "is_full"), [(23, False), (24, True), (28, True)])
def test_a_window_counts_only_where_a_layer_has_it(
    tmp_path: Path, first: int, *, is_full: bool
) -> None:
    config_class = import_module("transformers").Qwen2Config
    made = config_class(num_hidden_layers=24, use_sliding_window=True, max_window_layers=first)
    assert is_full == (set(made.layer_types) == {"full_attention"})
    values = {
        **document("Qwen2ForCausalLM"),
        "num_hidden_layers": 24,
        "use_sliding_window": True,
        "max_window_layers": first,
        "layer_types": None,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))

    if is_full:
        assert read_decoder_config(tmp_path).num_layers == 24
    else:
        with pytest.raises(CheckpointError, match="sliding window"):
            read_decoder_config(tmp_path)
