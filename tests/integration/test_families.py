"""Ten public models' repositories, over HTTP: ids, ends and greedy texts are transformers' own."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests.integration.families import FAMILIES, MAX_POSITIONS, TEXTS
from tests.integration.served import MODEL, Served, served
from tests.slow import slow_but

NUM_CHATS: Final = 20
MAX_TOKENS: Final = 24
OFTEN: Final = ("Llama-3.1-8B-Instruct",)
"""Those that `make test` takes."""

QUESTIONS: Final = (
    "What does the fox do?",
    " Two spaces  before,\n\nand lines between. ",
    "日本語は？",
    "12345 + 678 = ?",
    "naïve café\tGrüße 👩‍🚀",
)
FORMS: Final[tuple[Callable[[str], list[dict[str, str]]], ...]] = (
    lambda text: [{"role": "user", "content": text}],
    lambda text: [{"role": "system", "content": TEXTS[4]}, {"role": "user", "content": text}],
    lambda text: [
        {"role": "user", "content": text},
        {"role": "assistant", "content": TEXTS[3]},
        {"role": "user", "content": "Why?"},
    ],
    lambda text: [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": TEXTS[1]},
        {"role": "assistant", "content": "\n It adds. "},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And then?"},
    ],
)
CHATS: Final = [form(question) for form in FORMS for question in QUESTIONS]


@dataclass(frozen=True)
class Reference:
    """transformers with the same folder."""

    tokenizer: Any
    model: Any

    @classmethod
    def of(cls, folder: Path) -> "Reference":
        """Load it, in float32."""
        transformers: Any = import_module("transformers")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return cls(transformers.AutoTokenizer.from_pretrained(folder), model.eval())

    def ids(self, request: Mapping[str, Any]) -> list[int]:
        """Return the token ids of a chat or of a text."""
        if "messages" not in request:
            return list(self.tokenizer.encode(request["prompt"]))
        ids: list[int] = self.tokenizer.apply_chat_template(
            request["messages"], add_generation_prompt=True, return_dict=False
        )
        return ids

    def answer(self, ids: list[int]) -> tuple[str, str]:
        """Return the greedy text, and stop or length."""
        with torch.inference_mode():
            (tokens,) = self.model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
            ).tolist()
        output = tokens[len(ids) :]
        is_ended = output[-1] in as_list(self.model.generation_config.eos_token_id)
        text = self.tokenizer.decode(output, skip_special_tokens=True)
        return text, "stop" if is_ended else "length"


def as_list(ids: int | list[int]) -> list[int]:
    return ids if isinstance(ids, list) else [ids]


@dataclass(frozen=True)
class Case:
    """A family behind HTTP, and its reference."""

    server: Served
    reference: Reference
    requests: list[dict[str, Any]]

    @property
    def path(self) -> str:
        """The endpoint of its requests."""
        return "/v1/chat/completions" if "messages" in self.requests[0] else "/v1/completions"


@pytest.fixture(scope="module", params=slow_but(OFTEN, FAMILIES))
def case(
    request: pytest.FixtureRequest,
    make_checkpoint: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Case]:
    family = FAMILIES[request.param]
    folder = family.write(make_checkpoint, tmp_path_factory.mktemp("family"))
    prompts = [
        {"prompt": chat[-1]["content"] + text}
        for chat, text in zip(CHATS, cycle(TEXTS), strict=False)
    ]
    chats = [{"messages": chat} for chat in CHATS]
    with served(folder, max_seq_len=MAX_POSITIONS) as server:
        yield Case(server, Reference.of(folder), chats if family.template else prompts)


def test_ids_are_those_of_transformers(case: Case) -> None:
    for request in case.requests:
        answer = case.server.post("/tokenize", {"model": MODEL, **request}).json()
        assert answer["tokens"] == case.reference.ids(request), request


def test_greedy_texts_and_ends_are_those_of_transformers(case: Case) -> None:
    reasons = []
    for request in case.requests:
        body = {"model": MODEL, "temperature": 0, "max_tokens": MAX_TOKENS, **request}
        answer = case.server.post(case.path, body).json()["choices"][0]
        text, reason = case.reference.answer(case.reference.ids(request))
        said = answer["message"]["content"] if "message" in answer else answer["text"]
        assert (said, answer["finish_reason"]) == (text, reason), request
        reasons.append(reason)

    assert len(reasons) == NUM_CHATS
    assert {*reasons} == {"stop", "length"}, "some answers end, and some do not"


def test_a_model_without_a_template_says_so_to_a_chat(case: Case) -> None:
    chat = {"model": MODEL, "messages": CHATS[0], "max_tokens": 1}
    has_template = case.path == "/v1/chat/completions"

    answer = case.server.post("/v1/chat/completions", chat)

    assert answer.status_code == (200 if has_template else 400)
    message = answer.json().get("error", {"message": ""})["message"]
    assert ("no chat template" in message) == (not has_template)
