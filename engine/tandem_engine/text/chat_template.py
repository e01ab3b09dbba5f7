"""Renders a checkpoint's chat template, in a sandbox: it is code that comes with the model.

Offers templates what transformers does: `raise_exception`, `strftime_now`, `tojson`, `break` and
`continue`, `{% generation %}`, and the variables `messages`, `tools`, `documents`,
`add_generation_prompt` and the tokenizer's special tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from tandem_engine.api.errors import CheckpointError, InvalidParameter
from tandem_engine.text.caller_text import MARK, QUOTE
from tandem_engine.text.template_budget import BUDGET, RenderLimits
from tandem_engine.text.template_limits import BoundedEnvironment, render_bounded

_LONGEST_REASON: Final = 400
_LONGEST_LAYOUT: Final = 256
"""Characters of a layout of the date: some of them become dozens."""
_LIMITS: Final = RenderLimits()
_NOT_ASCII: Final = re.compile(f"[^\\x00-\\x7e{MARK}{QUOTE}]")
"""Characters that json.dumps escapes; the marks of callers' texts have to stay."""
_END: Final = "\U00012472 "
"""Stands behind the message that an answer is to continue."""
_OWN_VARIABLES: Final = frozenset({"messages", "add_generation_prompt"})


class ChatTemplate:
    """One compiled template with the special tokens that it may name.

    Args:
        source: The template.
        special_tokens: `bos_token` and the like, as far as the tokenizer has them.
        limits: Limits of one conversation.

    Raises:
        CheckpointError: it cannot be compiled.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        limits: RenderLimits = _LIMITS,
    ) -> None:
        try:
            environment = _environment()
            self.constants = _constants(environment.parse(source))
            """Texts in its expressions: some are written, for others it looks in messages."""
            self._template = environment.from_string(source)
        except Exception as error:  # a template is code: whatever it makes of the compiler
            raise CheckpointError(f"The chat template cannot be read: {_words(error)}.") from error
        self._special_tokens = dict(special_tokens)
        self._limits = limits

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as one prompt text.

        Args:
            messages: The conversation.
            add_generation_prompt: True to open the assistant's turn.
            continue_final_message: True to end with the content of the last message, so that an
                answer goes on with it.
            extra: More variables of the template, by which others are replaced.

        Raises:
            InvalidParameter: the template refuses the messages (its words are kept), fails over
                them, takes more than is allowed, or does not write the message to continue.
        """
        taken = sorted(_OWN_VARIABLES.intersection(extra or ()))
        if taken:
            raise InvalidParameter(
                f"chat_template_kwargs has the key {taken[0]}, which is a field of its own; "
                "leave it out there.",
                parameter="chat_template_kwargs",
            )
        variables = {"tools": None, "documents": None, **self._special_tokens, **(extra or {})}
        shown = _with_end(messages) if continue_final_message else list(messages)
        variables |= {"messages": shown, "add_generation_prompt": add_generation_prompt}
        try:
            text = render_bounded(self._template, variables, self._limits)
        except Exception as error:  # a template is code: it may raise anything
            raise InvalidParameter(
                f"The model's chat template refuses the messages: {_words(error)}.",
                parameter="messages",
            ) from error
        return _up_to_end(text, messages[-1]["content"]) if continue_final_message else text


class _Generation(Extension):
    """`{% generation %}`: what a model is trained to say. Here it is text like any other."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A block of its own, as in transformers: what is set within does not reach out of it.
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Any) -> Any:
        return caller()


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    environment.bound_filters()
    return environment


def _with_end(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    *others, last = messages
    return [*others, last | {"content": last["content"] + _END}]


def _up_to_end(text: str, content: str) -> str:
    """The text up to the end of the last message, as transformers cuts it."""
    at = text.rfind(_END.strip())
    if at < 0 or content.strip() not in text:
        raise InvalidParameter(
            "continue_final_message is true, but the model's chat template does not write the last "
            "message as it is; leave it out.",
            parameter="continue_final_message",
        )
    # A template that trims its messages has trimmed the space of the mark.
    return text[:at] if text.startswith(_END, at) else text[:at].rstrip()


def _constants(tree: nodes.Template) -> frozenset[str]:
    values = (constant.value for constant in tree.find_all(nodes.Const))
    return frozenset(value for value in values if isinstance(value, str))


def _raise_exception(message: Any) -> NoReturn:
    budget = BUDGET.get()
    budget.expect(budget.text_length(message))
    raise TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    if len(layout) > _LONGEST_LAYOUT or re.search(r"\d{3}", layout):
        raise TemplateError(
            f"strftime_now has a layout of {len(layout)} characters; at most {_LONGEST_LAYOUT} are "
            "possible, and no width of three digits"
        )
    # Without a time zone, as in transformers: %Z is empty.
    return datetime.now().astimezone().replace(tzinfo=None).strftime(layout)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes <, > and & for HTML; a prompt must keep them.
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _NOT_ASCII.sub(_escape, text) if ensure_ascii else text


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def _words(error: Exception) -> str:
    """The message of an error, in one line and without its last full stop."""
    said = " ".join(str(error)[: 4 * _LONGEST_REASON].split()).removesuffix(".")
    words = said if isinstance(error, TemplateError) and said else f"{type(error).__name__} {said}"
    return words.strip() if len(words) <= _LONGEST_REASON else words[:_LONGEST_REASON] + "…"
