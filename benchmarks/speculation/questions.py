"""tandem-tiny's held-out questions as requests: the ones that copy, and all."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.text.codec import load_codec

WORKLOADS: Final = {
    "copying": ("capitals", "double", "reverse", "sort", "count"),
    "questions": (),
}
"""Kinds of questions; none: all."""
_BANNED: Final = -100.0
_MOST: Final = 4000


def requests(
    model: Path, workload: str, *, output_len: int, temperature: float = 0.0
) -> Iterator[Request]:
    """Yield requests that are all different.

    Args:
        model: tandem-tiny's folder.
        workload: One of WORKLOADS.
        output_len: Tokens of each answer, which runs on behind its end; 0: it ends where it ends.
        temperature: 0: greedy.
    """
    kinds, codec = WORKLOADS[workload], load_codec(model)
    end = codec.end_token_id
    for number, conversation in enumerate(_questions(model).held_out(_MOST)):
        if kinds and conversation.kind not in kinds:
            continue
        bias = {end: _BANNED} if output_len and end is not None else {}
        longest = output_len or 48
        yield Request(
            request_id=f"{workload}-{number}",
            prompt_token_ids=tuple(codec.encode_chat(conversation.messages)),
            sampling=SamplingParams(max_tokens=longest, temperature=temperature, logit_bias=bias),
            max_new_tokens=longest,
            stop_token_ids=frozenset() if end is None else frozenset({end}),
            seeds=(number,),
        )


def banned_tokens(model: Path) -> list[int]:
    """Return the tokens without which an answer runs on behind its end."""
    end = load_codec(model).end_token_id
    return [] if end is None else [end]


def _questions(model: Path) -> Any:
    """Return the module beside the model; its folder is no package, so it is loaded by path."""
    spec = importlib.util.spec_from_file_location("questions", model / "questions.py")
    assert spec is not None  # noqa: S101
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules["questions"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
