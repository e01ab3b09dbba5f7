"""The tokens that end an answer: what all files of a checkpoint name, one set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tandem_engine.api.errors import ConfigError
from tandem_engine.documents import GENERATION_CONFIG_FILE, Fields, read_config, read_object
from tandem_engine.text.codec import CheckpointCodec
from tandem_engine.text.tokenizer_files import SETTINGS_FILE

SETTING: Final = "spec.model.eosTokenIds"


@dataclass(frozen=True, slots=True)
class EndTokens:
    """The ids of the end tokens, each with the files or the setting that name it."""

    sources: Mapping[int, tuple[str, ...]]

    @property
    def ids(self) -> frozenset[int]:
        """Ids of the tokens."""
        return frozenset(self.sources)

    def in_words(self, codec: CheckpointCodec) -> str:
        """Describe them in one line for a person."""
        if not self.sources:
            return f"No token ends an answer: no file of the checkpoint names one. Set {SETTING}"
        each = (
            f"{token_id} {codec.token_text(token_id)} ({', '.join(names)})"
            for token_id, names in self.sources.items()
        )
        return f"Answers end at the tokens {'; '.join(each)}"


def read_end_tokens(
    folder: Path, codec: CheckpointCodec, *, setting: Sequence[int] | None = None
) -> EndTokens:
    """The end tokens of config.json, generation_config.json and the tokenizer, together.

    `generate` of transformers takes those of generation_config.json alone where there are some;
    vLLM takes all, and so a chat model whose turn ends with a token of the tokenizer stops.

    Args:
        folder: The checkpoint.
        codec: Its tokenizer.
        setting: Ids that hold in place of those of the files; None: there is no such setting.

    Raises:
        CheckpointError: A file cannot be read, or names something that is no token of the model.
        ConfigError: `setting` does.
    """
    config = read_config(folder)
    vocab_size = config.count("vocab_size")
    if setting is not None:
        _check_setting(setting, vocab_size)
        return EndTokens(dict.fromkeys(setting, (SETTING,)))
    sources: dict[int, tuple[str, ...]] = {}
    for token_id, name in _named(folder, config, codec, vocab_size):
        sources[token_id] = (*sources.get(token_id, ()), name)
    return EndTokens(sources)


def _named(
    folder: Path, config: Fields, codec: CheckpointCodec, vocab_size: int
) -> Iterator[tuple[int, str]]:
    path = folder / GENERATION_CONFIG_FILE
    generation = [Fields(path, read_object(path))] if path.exists() else []
    for fields in (config, *generation):
        for token_id in _ids_of(fields, vocab_size):
            yield token_id, fields.path.name
    # A tokenizer may have more tokens than the model can yield.
    if codec.end_token_id is not None and codec.end_token_id < vocab_size:
        yield codec.end_token_id, SETTINGS_FILE


def _ids_of(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    value = fields.get("eos_token_id")
    if value is None:
        return ()
    ids: Sequence[Any] = value if isinstance(value, list) else [value]
    if not all(_is_token_id(token_id, vocab_size) for token_id in ids):
        raise fields.refuse("eos_token_id", "a token id below vocab_size, or a list of them")
    return tuple(dict.fromkeys(ids))


def _is_token_id(value: Any, vocab_size: int) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and 0 <= value < vocab_size


def _check_setting(setting: Sequence[int], vocab_size: int) -> None:
    wrong = [token_id for token_id in setting if not _is_token_id(token_id, vocab_size)]
    if wrong:
        raise ConfigError(
            f"{SETTING} names the token {wrong[0]}; the model's tokens are 0 to {vocab_size - 1}."
        )
