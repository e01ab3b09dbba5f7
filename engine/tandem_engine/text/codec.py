"""The checkpoint's tokenizer: tokenizer.json by the `tokenizers` library, and its chat template."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tandem_engine.api.errors import InvalidParameter
from tandem_engine.text.caller_text import CallerText, unmarked
from tandem_engine.text.chat_templates import ChatTemplates, read_chat_templates
from tandem_engine.text.detokenizer import PromptContext
from tandem_engine.text.special_tokens import SplittingEncoder, special_spellings
from tandem_engine.text.tokenizer_files import load_tokenizer, named_tokens, read_settings
from tandem_engine.text.vocabulary import Vocabulary, decoder_kind


class CheckpointCodec:
    """Implements `tandem_engine.api.engine_client.TextCodec`.

    Args:
        tokenizer: The tokenizer.
        templates: The chat templates, if there are any.
        end_token_id: The tokenizer's own end token.
        split_special_tokens: Encode special tokens that messages spell as text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        templates: ChatTemplates | None,
        *,
        end_token_id: int | None = None,
        split_special_tokens: bool = True,
    ) -> None:
        self.end_token_id = end_token_id
        self._tokenizer = tokenizer
        self._templates = templates
        self._marks, self._splitter = None, None
        if templates is not None and split_special_tokens:
            spellings = special_spellings(tokenizer)
            self._marks = CallerText(spellings, templates.constants)
            self._splitter = SplittingEncoder(tokenizer, spellings)
        kind = decoder_kind(tokenizer)
        self._vocabulary = None if kind is None else Vocabulary(tokenizer, kind)

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer can make, special tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @cached_property
    def max_token_chars(self) -> int:
        """Characters of the longest token."""
        return max(map(len, self._tokenizer.get_vocab()), default=1)

    def tokens_by_id(self) -> dict[int, str]:
        """Return the whole vocabulary, special tokens included."""
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        return {number: token for token, number in vocabulary.items()}

    def special_token_ids(self) -> frozenset[int]:
        """Return the tokens that are no text."""
        return frozenset(self._special_tokens.values())

    @cached_property
    def _special_tokens(self) -> dict[str, int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    def special_tokens_of(self, texts: Sequence[str]) -> frozenset[int]:
        """Ids of the special tokens among `texts`."""
        return frozenset(self._special_tokens[text] for text in self._special_tokens.keys() & texts)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""
        # Unlike `encode`, `encode_batch` lets other threads run meanwhile: the event loop, for one.
        [encoding] = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`."""
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return str(text)

    def token_text(self, token_id: int) -> str:
        """One token as text, special tokens included; not valid UTF-8 becomes U+FFFD."""
        if self._vocabulary is None:
            return self.decode([token_id], skip_special_tokens=False)
        return self._vocabulary.token_text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """One token as the bytes that it stands for within a text."""
        if self._vocabulary is None:
            return self.token_text(token_id).encode()
        return self._vocabulary.token_bytes(token_id)

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation; the template writes the special tokens itself.

        What messages and variables spell is text, unless split_special_tokens is off.

        Raises:
            InvalidParameter: there is no template for it, or it refuses the messages.
        """
        if self._templates is None:
            raise InvalidParameter(
                "The model has no chat template; use /v1/completions with a plain prompt.",
                parameter="messages",
            )
        render = partial(
            self._templates.choose(template_kwargs or {}).render,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        if self._marks is None or self._splitter is None:
            return self.encode(render(messages, extra=template_kwargs), add_special_tokens=False)
        variables = self._marks.mark_values(template_kwargs or {})
        try:
            text = render(self._marks.mark_messages(messages), extra=variables)
        except InvalidParameter as error:  # it may quote a message
            raise InvalidParameter(unmarked(str(error)), parameter=error.parameter) from error
        return self._splitter.encode(text)

    def context(self, prompt: Sequence[int], *, skip_special_tokens: bool) -> PromptContext:
        """Context for decoding the outputs that continue a prompt."""
        return PromptContext(
            self._tokenizer, self._vocabulary, prompt, skip_special_tokens=skip_special_tokens
        )


def load_codec(folder: Path, *, split_special_tokens: bool = True) -> CheckpointCodec:
    """Read the tokenizer and the chat templates of a checkpoint.

    Args:
        folder: The checkpoint.
        split_special_tokens: Encode special tokens that messages spell as text.

    Raises:
        CheckpointError: a file is missing or cannot be read.
    """
    settings = read_settings(folder)
    tokenizer = load_tokenizer(folder, settings)
    end_token = named_tokens(settings).get("eos_token")
    return CheckpointCodec(
        tokenizer,
        read_chat_templates(folder, settings),
        end_token_id=tokenizer.token_to_id(end_token) if end_token else None,
        split_special_tokens=split_special_tokens,
    )
