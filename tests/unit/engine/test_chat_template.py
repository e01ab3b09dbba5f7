"""Chat templates as transformers renders them, and hostile ones."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from tokenizers import Tokenizer, models

from tandem_engine.api.errors import CheckpointError, InvalidParameter
from tandem_engine.text.chat_template import ChatTemplate
from tandem_engine.text.codec import load_codec
from tandem_engine.text.template_budget import RenderLimits
from tests.unit.engine.templates_of_models import TEMPLATES

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "How it is <there> & when",
            "parameters": {
                "type": "object",
                "properties": {
                    "städte": {"type": "array", "items": {"type": "string"}},
                    "days": {"type": "integer"},
                },
                "required": ["städte"],
            },
        },
    },
    {"type": "function", "function": {"name": "a", "parameters": {"properties": {}}}},
]
DOCUMENTS = [{"title": "Über", "text": "<b>bold</b>\n"}, {"title": "2", "text": ""}]
CONVERSATIONS = {
    "one question": [("user", " Hello, wörld! \n")],
    "a system prompt": [("system", "Be <brief> & kind."), ("user", "Hi")],
    "several turns": [
        ("system", "S"),
        ("user", "one"),
        ("assistant", "<think>\nso\n</think>\n\ntwo"),
        ("user", "skip"),
        ("assistant", "日本 😀 \t"),
        ("user", ""),
    ],
    "an answer last": [("user", "q"), ("assistant", "<think>x</think>\n a")],
    "turns out of order": [("user", "q"), ("user", "q"), ("system", "late")],
    "code of a template": [("user", "{{ messages }} {% for x in range(9) %}{% endfor %}")],
}
EXTRAS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "tools": {"tools": TOOLS},
    "documents": {"documents": DOCUMENTS},
    "switches": {"enable_thinking": False, "date_string": "1 May 2030", "mood": None},
    "own special tokens": {"bos_token": "[", "eos_token": "]"},
}


def messages_of(name: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in CONVERSATIONS[name]]


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_public_models_render_as_in_transformers(
    name: str, conversation: str, add_generation_prompt: bool
) -> None:
    fast: Any = import_module("transformers").PreTrainedTokenizerFast
    reference = fast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
    template = ChatTemplate(TEMPLATES[name], SPECIAL)
    messages = messages_of(conversation)
    for extra in EXTRAS.values():
        try:
            expected = reference.apply_chat_template(
                messages,
                chat_template=TEMPLATES[name],
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **extra,
            )
        except TemplateError as error:
            expected = f"The model's chat template refuses the messages: {error}"
        try:
            got = template.render(
                messages, add_generation_prompt=add_generation_prompt, extra=extra
            )
        except InvalidParameter as error:
            got = str(error)

        assert got.removesuffix(".") == expected.removesuffix(".")


# transformers refuses a template whose source lacks the word, wherever it has its texts from.
@pytest.mark.parametrize("name", [name for name in TEMPLATES if "content" in TEMPLATES[name]])
@pytest.mark.parametrize("content", ["Once", "Once upon ", " a\n", "<think>x</think>\n a", "", "a"])
def test_a_final_message_is_continued_as_in_transformers(name: str, content: str) -> None:
    fast: Any = import_module("transformers").PreTrainedTokenizerFast
    reference = fast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
    template = ChatTemplate(TEMPLATES[name], SPECIAL)
    for role in ("assistant", "user"):
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "Once upon "},
            {"role": "user", "content": "a"},
            {"role": role, "content": content},
        ]
        try:
            expected = reference.apply_chat_template(
                messages, chat_template=TEMPLATES[name], continue_final_message=True, tokenize=False
            )
        except (TemplateError, ValueError):
            with pytest.raises(InvalidParameter):
                template.render(messages, add_generation_prompt=False, continue_final_message=True)
            continue

        got = template.render(messages, add_generation_prompt=False, continue_final_message=True)

        assert got == expected


def test_a_final_message_that_is_not_written_cannot_be_continued() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    with pytest.raises(InvalidParameter, match="does not write the last message") as refused:
        template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert refused.value.parameter == "continue_final_message"


def render(source: str, *, limits: RenderLimits | None = None, **extra: Any) -> str:
    template = ChatTemplate(source, {}, limits=limits or RenderLimits())
    return template.render(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, extra=extra
    )


LIMITS = RenderLimits(steps=1000, characters=1000, bits=64)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for a in range(10**9) %}{% endfor %}", "OverflowError Range too big"),
        (
            "{% for a in range(99) %}{% for b in range(99) %}x{% endfor %}{% endfor %}",
            "more than 1000 iterations",
        ),
        (
            "{% for a in range(99) %}{% for b in range(99) if false %}{% endfor %}{% endfor %}",
            "more than 1000 iterations",
        ),
        (
            "{% for a in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
            "more than 1000 iterations|RecursionError",
        ),
        (
            "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
            "RecursionError|iterations",
        ),
        (
            "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}"
            "{{ m(40) }}",
            "more than 1000 iterations",
        ),
        ("{{ 'x' * 10**9 }}", "text of more than 1000 characters"),
        ("{{ 10**9 * [1] }}", "text of more than 1000 characters"),
        ("{{ (10**9) ** (10**9) }}", "number of more than 64 bits"),
        (
            "{% set ns = namespace(s='xx') %}{% for a in range(64) %}"
            "{% set ns.s = ns.s + ns.s %}{% endfor %}",
            "text of more than 1000 characters",
        ),
        (
            "{% set ns = namespace(s='xx') %}{% for a in range(64) %}"
            "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
            "text of more than 1000 characters",
        ),
        (
            "{% set ns = namespace(n=9) %}{% for a in range(64) %}"
            "{% set ns.n = ns.n * ns.n %}{% endfor %}",
            "number of more than 64 bits",
        ),
        ("{% for a in range(500) %}xxx{% endfor %}", "text of more than 1000 characters"),
    ],
)
def test_a_template_without_end_is_one_sentence(source: str, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words) as refused:
        render(source, limits=LIMITS)

    assert str(refused.value).count("\n") == 0
    assert len(str(refused.value)) < 600


def test_a_template_that_computes_long_is_ended_by_the_clock() -> None:
    source = "{% for a in range(100000) %}{% set b = range(9999) | sum %}{% endfor %}"

    with pytest.raises(InvalidParameter, match=r"takes more than 0\.01 s"):
        render(source, limits=RenderLimits(seconds=0.01))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ messages[0].content[{}] + 1 }}",
        "{{ messages | first | tojson(indent=[]) }}",
        "{{ nothing.at.all }}",
        "{{ 'x'.encode('latin-1').decode('utf-16') }}",
        "{{ '%d' % 'x' }}",
        "{{ messages[0].content.index('z') }}",
        "{{ dict(a=1).b() }}",
        "{{ extra | tojson }}",
        "{{ strftime_now(5) }}",
    ],
)
def test_whatever_a_template_raises_is_one_sentence(source: str) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(InvalidParameter, match="chat template refuses the messages: ") as refused:
        render(source, extra=deep)
    assert refused.value.parameter == "messages"
    del refused
    while deep:  # an end at a time: freeing all at once recurses
        deep = deep.pop()


def test_the_callers_words_are_kept_and_cut() -> None:
    with pytest.raises(InvalidParameter) as refused:
        render("{{ raise_exception('no ' * 9000) }}")

    assert 400 < len(str(refused.value)) < 500


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt"])
def test_fields_of_their_own_are_no_variables(name: str) -> None:
    with pytest.raises(InvalidParameter, match=f"chat_template_kwargs has the key {name}") as said:
        ChatTemplate("x", {}).render([], add_generation_prompt=True, extra={name: []})
    assert said.value.parameter == "chat_template_kwargs"


def test_renderings_do_not_count_together() -> None:
    template = ChatTemplate("{% for a in range(60) %}x{% endfor %}", {}, limits=LIMITS)

    for _ in range(40):
        assert template.render([], add_generation_prompt=False) == "x" * 60


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ " + "(" * 5000 + " }}", "{% generation %}", "{{ '" + "x" * 10]
)
def test_a_template_that_cannot_be_read_is_one_sentence(source: str) -> None:
    with pytest.raises(CheckpointError, match="The chat template cannot be read: ") as refused:
        ChatTemplate(source, {})
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("settings", "template", "words"),
    [
        ({"chat_template": {"a": 1}}, None, "chat_template is neither a text"),
        (
            {"chat_template": [{"name": "default", "template": 5}]},
            None,
            "chat_template is neither a text",
        ),
        ({}, b"\xff{{", "is not UTF-8"),
    ],
)
def test_a_template_file_that_is_none_is_named(
    tmp_path: Path, settings: dict[str, Any], template: bytes | None, words: str
) -> None:
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (tmp_path / "chat_template.jinja").write_bytes(template)

    with pytest.raises(CheckpointError, match=words):
        load_codec(tmp_path)


def test_a_special_token_that_there_is_not_is_undefined(tmp_path: Path) -> None:
    Tokenizer(models.BPE(vocab={"x": 0}, merges=[])).save(str(tmp_path / "tokenizer.json"))
    named = [{"name": "tool_use", "template": "y"}, {"name": "default", "template": SHOW_TOKENS}]
    settings = {"bos_token": {"content": "x"}, "eos_token": None, "chat_template": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    codec = load_codec(tmp_path)

    ids = codec.encode_chat([{"role": "user", "content": ""}])
    assert codec.decode(ids, skip_special_tokens=False) == "x"


SHOW_TOKENS = "{% if bos_token is defined and eos_token is not defined %}{{ bos_token }}{% endif %}"
