"""Renders a checkpoint's chat template, in a sandbox: it is code from whoever made the model.

Follows what transformers offers to templates: `raise_exception`, `strftime_now`, `tojson`,
`break` and `continue`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem_engine.api.errors import CheckpointError, InvalidParameter


class ChatTemplate:
    """One compiled template with the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise CheckpointError(f"The chat template cannot be read: {error}.") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as one prompt text.

        Raises:
            InvalidParameter: the template refuses the messages; its words are kept.
        """
        variables = {**self._special_tokens, **(extra or {})}
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **variables
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise InvalidParameter(
                f"The model's chat template refuses the messages: {error}.", parameter="messages"
            ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _to_json(value: Any, indent: int | None = None) -> str:
    # jinja2's own filter escapes <, > and & for HTML; a prompt must keep them.
    return json.dumps(value, ensure_ascii=False, indent=indent)
