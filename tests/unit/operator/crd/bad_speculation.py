"""Speculation that is refused, and speculation that is taken."""

from collections.abc import Iterator
from typing import Any, Final

from tests.unit.operator.crd.forms import Bad, wrong_value

SPECULATION: Final = "spec.engine.speculation"
SOURCE: Final = f"{SPECULATION}.draft.source"
STRATEGY: Final = "spec.engine.schedule.strategy"
_METHOD: Final = f"{SPECULATION}.method"

GOOD_SPECULATION: Final[dict[str, dict[str, Any]]] = {
    "drafts that are looked up": {_METHOD: "ngram"},
    "drafts of a model": {_METHOD: "draft", SOURCE: "pvc://models/small"},
    "drafts of both": {_METHOD: "auto", SOURCE: "file:///models/small"},
    "a draft model alone": {SOURCE: "pvc://models/small"},
    "the strategy of drafts": {STRATEGY: "speculative"},
    "the strategy of drafts, mixed": {
        STRATEGY: "speculative",
        "spec.engine.schedule.templateType": "Mix",
        _METHOD: "ngram",
    },
    "no drafts": {_METHOD: "none"},
}


def bad_speculation() -> Iterator[Bad]:
    """One for every rule."""
    yield wrong_value(_METHOD, "mtp", "supported values", "allowed: none, ngram, draft, auto")
    yield wrong_value(f"{SPECULATION}.maxDraftTokens", 17, "less than or equal to 16", "too large")
    yield from _sources()
    yield Bad(
        "a draft model that is missing",
        {_METHOD: "draft"},
        f"{SPECULATION}.draft",
        "method draft needs draft, the checkpoint of a smaller model with the same tokenizer",
    )
    for method in ("ngram", "none"):
        yield Bad(
            f"a draft model of method {method}",
            {_METHOD: method, SOURCE: "pvc://models/small"},
            f"{SPECULATION}.draft",
            f"draft is the model of method draft or auto, not of {method}",
        )
    yield Bad(
        "the strategy of drafts without any",
        {STRATEGY: "speculative", _METHOD: "none"},
        _METHOD,
        "schedule.strategy speculative needs drafts, and speculation.method is none; leave one",
    )


def _sources() -> Iterator[Bad]:
    """The draft model is named as the model is."""
    yield wrong_value(SOURCE, "/models/tiny", "is a bare path; write file:///models/tiny")
    yield wrong_value(SOURCE, "./tiny", "is relative to a manifest, whose folder Kubernetes")
    yield wrong_value(
        SOURCE, "hf://Qwen/Qwen3-8B", "is not a source that Kubernetes can mount", "scheme 'hf'"
    )
    yield wrong_value(SOURCE, "file:///a/../b", "names no folder of the node")
    yield wrong_value(SOURCE, "pvc://Models/tiny", "names no folder in a volume claim")
