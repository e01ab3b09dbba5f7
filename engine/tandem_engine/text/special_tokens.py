"""Encodes rendered conversations so that special tokens come from the template alone."""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from tokenizers import AddedToken, Tokenizer

from tandem_engine.api.errors import InvalidParameter
from tandem_engine.text.caller_text import MARK, QUOTE, unmarked

_CONTROL: Final = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
_FIRST_ALIAS: Final = 0xF0000
_CUT: Final = f"{MARK}|{MARK}"
_UNASSIGNED: Final = "\U0010fffe"


def special_spellings(tokenizer: Tokenizer) -> dict[str, int]:
    """Text → id of the tokens that no caller's text may become.

    These are the special ones, and others that are spelled like them: DeepSeek's `<｜User｜>` is
    not special there, and begins a turn all the same. Tokens like `<think>` and `<tool_call>` are
    text: answers show them, and histories and prompts about tools have to hold them.
    """
    added = tokenizer.get_added_tokens_decoder()
    return {
        token.content: token_id
        for token_id, token in added.items()
        if token.content and (token.special or _CONTROL.fullmatch(token.content))
    }


class SplittingEncoder:
    """Token ids of marked texts: a spelling with a caller's character in it is text like any other.

    Texts in which callers spell no special token are encoded as ever. For the others there is a
    second tokenizer on the same model, which knows the special tokens by aliases that no caller can
    write; in what the template wrote, aliases take their place.

    Args:
        tokenizer: The checkpoint's.
        spellings: Texts and ids of the special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, spellings: dict[str, int]) -> None:
        self._tokenizer = tokenizer
        self._spellings = spellings
        self._special_ids = set(spellings.values()) - _unknown_ids(tokenizer)
        self._aliases = {
            text: f"{MARK}{chr(_FIRST_ALIAS + number)}{MARK}"
            for number, text in enumerate(spellings)
        }
        self._renamed = _renamed(tokenizer, self._aliases)
        added = tokenizer.get_added_tokens_decoder().items()
        self._ids = {
            self._renamed.token_to_id(self._aliases.get(token.content, token.content)): token_id
            for token_id, token in added
        }
        self._cut_id = self._renamed.token_to_id(_CUT)
        tokens = _alternatives(token.content for _, token in added)
        self._tokens = re.compile(tokens)
        self._tokens_and_marks = re.compile(f"{QUOTE}([{MARK}{QUOTE}])|{MARK}|{tokens}")

    def encode(self, text: str) -> list[int]:
        """Token ids of what a template wrote of marked texts.

        Raises:
            InvalidParameter: Even parts of a spelling become the special token.
        """
        plain = unmarked(text)
        of_template = self._special_texts(text)
        if of_template == self._special_texts(plain):
            ids = _encode(self._tokenizer, plain)
            expected = [self._spellings[token] for token in of_template]
            if self._special(ids) == self._special(expected):
                return ids
        return self._split(text)

    def _split(self, text: str) -> list[int]:
        for cut in ("", _CUT):  # where a model has a spelling in its vocabulary, it is cut in two
            ids = _encode(self._renamed, self._with_aliases(text, cut))
            if not any(
                token_id in self._special_ids and token_id not in self._ids for token_id in ids
            ):
                return [
                    self._ids.get(token_id, token_id)
                    for token_id in ids
                    if token_id != self._cut_id
                ]
        raise InvalidParameter(
            "messages spell a special token of the model, which its tokenizer cannot write as "
            "text; leave it out.",
            parameter="messages",
        )

    def _special_texts(self, text: str) -> list[str]:
        return [token for token in self._tokens.findall(text) if token in self._spellings]

    def _special(self, ids: Iterable[int]) -> list[int]:
        return [token_id for token_id in ids if token_id in self._special_ids]

    def _with_aliases(self, text: str, cut: str) -> str:
        def written(match: re.Match[str]) -> str:
            if match[0] == MARK:
                return cut
            if match[1] == MARK:  # so that nothing a caller writes is an alias
                return MARK + _CUT
            return match[1] or self._aliases.get(match[0], match[0])

        return self._tokens_and_marks.sub(written, text)


def _alternatives(texts: Iterable[str]) -> str:
    """A pattern of the longest of the texts that begins at a place, if it has no mark."""
    longest_first = sorted(filter(None, texts), key=len, reverse=True)
    return "|".join(map(_unmarked_pattern, longest_first)) or "(?!)"


def _unmarked_pattern(text: str) -> str:
    return re.escape(text) + (f"(?!{MARK})" if len(text) == 1 else "")


def _renamed(tokenizer: Tokenizer, aliases: dict[str, str]) -> Tokenizer:
    """A tokenizer on the same model, without a copy of it, with aliases of special tokens."""
    renamed = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        renamed.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        renamed.pre_tokenizer = tokenizer.pre_tokenizer
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    renamed.add_tokens([_alias(token, aliases) for _, token in added])
    renamed.add_tokens([AddedToken(_CUT, normalized=False)])
    return renamed


def _alias(token: AddedToken, aliases: dict[str, str]) -> AddedToken:
    alias = aliases.get(token.content)
    return AddedToken(
        alias or token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized and alias is None,
    )


def _unknown_ids(tokenizer: Tokenizer) -> set[int]:
    """The token of characters that a model does not know: any text may hold it."""
    unknown: set[int] = set()
    with suppress(Exception):  # a model without such a token may raise
        unknown = {token.id for token in tokenizer.model.tokenize(_UNASSIGNED)}
    return unknown


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    # Unlike `encode`, `encode_batch` lets other threads run meanwhile: the event loop, for one.
    [encoding] = tokenizer.encode_batch([text], add_special_tokens=False)
    return list(encoding.ids)
