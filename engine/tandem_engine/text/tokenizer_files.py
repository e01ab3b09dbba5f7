"""Reads a tokenizer from the files of a checkpoint, as AutoTokenizer of transformers does."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from tandem_engine.api.errors import CheckpointError

SETTINGS_FILE: Final = "tokenizer_config.json"
_TOKENIZER_FILE: Final = "tokenizer.json"
_SPECIAL_TOKENS_FILE: Final = "special_tokens_map.json"
_ADDED_TOKENS_FILE: Final = "added_tokens.json"
_VOCABULARY_FILES: Final = {
    # A model of SentencePiece, or lines as tiktoken reads them.
    "tokenizer.model": "transformers, sentencepiece, protobuf and tiktoken are",
    "vocab.json": "transformers is",
    "vocab.txt": "transformers is",
    "tekken.json": "transformers is",
}
"""The packages, and their verb, that make a tokenizer.json of each."""
_STANDARD: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_settings(folder: Path) -> dict[str, Any]:
    """Settings of tokenizer_config.json.

    Tokenizers saved before transformers 4.34 have no added_tokens_decoder there; what their
    special_tokens_map.json says goes before the settings.

    Raises:
        CheckpointError: A file cannot be read.
    """
    settings = read_json(folder / SETTINGS_FILE)
    if "added_tokens_decoder" not in settings:
        settings |= read_json(folder / _SPECIAL_TOKENS_FILE)
    return settings


def named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Name → text of `bos_token` and the like, then of those of the model, as `image_token`.

    Each stands as a text or as an object with its content.
    """
    standard = [f"{kind}_token" for kind in _STANDARD]
    of_model = [name for name in settings if name.endswith("_token") and name not in standard]
    texts = {name: _content(settings.get(name)) for name in (*standard, *of_model)}
    # To a template, one that is not there is undefined.
    return {name: text for name, text in texts.items() if text}


def load_tokenizer(folder: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of tokenizer.json with the tokens that other files add or call special.

    As in transformers 5, tokenizer.json alone says whether prompts get a bos or an eos:
    add_bos_token and add_eos_token of the settings are for folders without that file.

    Args:
        folder: The checkpoint.
        settings: Its settings, as `read_settings` has them.

    Raises:
        CheckpointError: A file is missing or cannot be read.
    """
    tokenizer = _read_tokenizer(folder)
    # Settings for training batches, which would cut or fill prompts without a word.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        _add_tokens(tokenizer, folder, settings)
    except (TypeError, UnicodeError) as error:
        raise CheckpointError(
            f"{folder}: {SETTINGS_FILE}, {_SPECIAL_TOKENS_FILE} or {_ADDED_TOKENS_FILE} has a "
            f"token that is none: {error}; copy the files again."
        ) from error
    tokenizer.encode_special_tokens = settings.get("split_special_tokens") is True
    return tokenizer


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no file.

    Raises:
        CheckpointError: It cannot be read, or holds something else.
    """
    if not path.is_file():
        return {}
    try:
        document = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds no JSON object.")
    return document


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        CheckpointError: It is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise CheckpointError(f"{path} is not UTF-8: {error}.") from error


def _read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / _TOKENIZER_FILE
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; {_way_out(folder, path)}.")
    try:
        return Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises plain Exception; its panics are none
        raise CheckpointError(f"{path} is not a tokenizer: {error}.") from error


def _way_out(folder: Path, path: Path) -> str:
    needed = (text for name, text in _VOCABULARY_FILES.items() if (folder / name).is_file())
    packages = next(needed, None)
    if packages is None:
        return "copy it from where the model comes from"
    code = (
        "from transformers import AutoTokenizer; "
        f"AutoTokenizer.from_pretrained({str(folder)!r}).backend_tokenizer.save({str(path)!r})"
    )
    return f"where {packages} installed, this makes it: python -c {shlex.quote(code)}"


def _add_tokens(tokenizer: Tokenizer, folder: Path, settings: Mapping[str, Any]) -> None:
    added = _added_tokens(folder, settings, tokenizer)
    tokenizer.add_tokens([token for _, token in sorted(added.items())])
    by_text = {token.content: token for token in added.values()}
    for text, value in _special_tokens(settings).items():
        tokenizer.add_tokens([_special(by_text.get(text), value)])


def _added_tokens(
    folder: Path, settings: Mapping[str, Any], tokenizer: Tokenizer
) -> dict[int, AddedToken]:
    """Tokens by the ids that their file gives them; they are added in that order."""
    if "added_tokens_decoder" in settings:
        return dict(_decoder_entries(folder / SETTINGS_FILE, settings["added_tokens_decoder"]))
    path = folder / _ADDED_TOKENS_FILE
    special = _special_tokens(settings)
    added = {}
    for text, token_id in read_json(path).items():
        if not isinstance(token_id, int):
            raise CheckpointError(f"{path} gives {text!r} the id {token_id!r}; ids are integers.")
        added[token_id] = AddedToken(text, special=text in special, normalized=text not in special)
    return added | dict(tokenizer.get_added_tokens_decoder())


def _decoder_entries(path: Path, entries: Any) -> Iterator[tuple[int, AddedToken]]:
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path}: added_tokens_decoder is no object of ids and tokens.")
    for key, entry in entries.items():
        try:
            yield int(key), _token(entry)
        except (TypeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{path}: added_tokens_decoder has the entry {key!r}, which is no id with a token "
                "(content, special, lstrip, rstrip, normalized, single_word)."
            ) from error


def _token(entry: dict[str, Any]) -> AddedToken:
    return AddedToken(entry["content"], **{flag: entry[flag] for flag in _FLAGS if flag in entry})


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Text → entry of the tokens that the settings call special, whatever tokenizer.json says."""
    # transformers 4 wrote additional_special_tokens, transformers 5 extra_special_tokens.
    more = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    listed = more.values() if isinstance(more, dict) else more if isinstance(more, list) else []
    entries = [*(settings[name] for name in named_tokens(settings)), *listed]
    return {text: entry for entry in entries if (text := _content(entry))}


def _special(token: AddedToken | None, entry: Any) -> AddedToken:
    if token is None:
        fields = entry if isinstance(entry, dict) else {"content": entry}
        return _token({"normalized": False, **fields, "special": True})
    token.special = True
    return token


def _content(value: Any) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None
