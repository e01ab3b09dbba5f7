"""Folders of tokenizers, read as AutoTokenizer of transformers reads them."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tandem_engine.api.errors import CheckpointError, InvalidParameter
from tandem_engine.text.codec import CheckpointCodec, load_codec
from tests.patience import HANG_S
from tests.unit.engine.tokenizers_of_models import (
    added_tokens_decoder,
    entry,
    llama3,
    mistral,
    qwen,
)

TEXTS = [
    "Hello <think> the <new>  cat <|im_end|> x<also>\n",
    "<|im_start|><think>",
    "",
    " 日本<s>[INST]Hello</s>",
    "<|begin_of_text|>world",
]
MESSAGES = [{"role": "user", "content": "Hello the cat"}, {"role": "assistant", "content": "x"}]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_BOS = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
TOOLS = "{% for t in tools %}{{ t.function.name }}{% endfor %}"
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def id_in_qwen(text: str) -> int:
    token_id = qwen().token_to_id(text)
    assert token_id is not None
    return token_id


THINK = id_in_qwen("<think>")
IM_END = id_in_qwen("<|im_end|>")


def decoder(**more: Any) -> dict[str, Any]:
    """added_tokens_decoder as transformers 4 saved it: tokens of tokenizer.json, then others."""
    return added_tokens_decoder(qwen()) | more


@dataclass(frozen=True)
class Layout:
    """The files of one kind of folder."""

    make: Callable[[], Tokenizer] = qwen
    model_type: str = "llama"
    settings: dict[str, Any] | None = field(default_factory=dict)
    """tokenizer_config.json; None: there is none."""
    kind: str = "PreTrainedTokenizerFast"
    files: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the files to a folder."""
        self.make().save(str(folder / "tokenizer.json"))
        files = {"config.json": {"model_type": self.model_type}, **self.files}
        if self.settings is not None:
            files["tokenizer_config.json"] = {"tokenizer_class": self.kind, **self.settings}
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        return folder


ADDED = {
    "tokenizer.json alone": Layout(settings=None),
    "a new special token": Layout(
        settings={"added_tokens_decoder": decoder(**{str(THINK + 1): entry("<new>", special=True)})}
    ),
    "a new token that is text": Layout(
        settings={"added_tokens_decoder": decoder(**{str(THINK + 1): entry("<new>")})}
    ),
    "a token with other spaces": Layout(
        settings={"added_tokens_decoder": {str(THINK): entry("<think>", lstrip=True, rstrip=True)}}
    ),
    "a token special in the settings alone": Layout(
        settings={"added_tokens_decoder": {str(THINK): entry("<think>", special=True)}}
    ),
    "a token special in tokenizer.json alone": Layout(
        settings={"added_tokens_decoder": {str(IM_END): entry("<|im_end|>")}}
    ),
    "ids out of order": Layout(
        settings={"added_tokens_decoder": {"1000": entry("<new>"), "900": entry("<also>")}}
    ),
    "a word of the vocabulary": Layout(
        settings={"added_tokens_decoder": {"0": entry("Hello", special=True)}}
    ),
    "added_tokens.json": Layout(files={"added_tokens.json": {"<also>": 901, "<new>": 900}}),
    "added_tokens.json with an id that is taken": Layout(
        files={"added_tokens.json": {"<new>": THINK, "<also>": 900}}
    ),
    "added_tokens.json with special_tokens_map.json": Layout(
        files={
            "added_tokens.json": {"<new>": THINK + 1},
            "special_tokens_map.json": {"eos_token": "<new>", "bos_token": "<|im_start|>"},
        }
    ),
    "added_tokens.json beside a decoder": Layout(
        settings={"added_tokens_decoder": decoder()},
        files={
            "added_tokens.json": {"<new>": THINK + 1},
            "special_tokens_map.json": {"eos_token": "<also>"},
        },
    ),
    "special_tokens_map.json with objects": Layout(
        files={"special_tokens_map.json": {"eos_token": entry("<new>", lstrip=True)}}
    ),
    "a padding token of its own": Layout(settings={"pad_token": "<new>"}),
    "an end token that is text": Layout(settings={"eos_token": "<think>"}),
    "an end token beside a decoder": Layout(
        settings={"eos_token": "<think>", "added_tokens_decoder": decoder()}
    ),
    "additional_special_tokens": Layout(settings={"additional_special_tokens": ["<new>"]}),
    "extra_special_tokens": Layout(
        settings={"extra_special_tokens": ["<new>"], "additional_special_tokens": ["<also>"]}
    ),
    "extra_special_tokens with names": Layout(
        settings={"extra_special_tokens": {"image_token": "<new>"}}
    ),
    "a token that the model has a name for": Layout(settings={"image_token": "<new>"}),
    "bos and eos that tokenizer.json does not add": Layout(
        settings={
            "add_bos_token": True,
            "add_eos_token": True,
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
        }
    ),
    "a bos that only tokenizer.json adds": Layout(
        make=llama3, settings={"add_bos_token": False, "bos_token": "<|begin_of_text|>"}
    ),
    "split_special_tokens": Layout(settings={"split_special_tokens": True}),
    "SentencePiece": Layout(
        make=mistral,
        kind="LlamaTokenizerFast",
        settings={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False},
    ),
    "Qwen": Layout(
        model_type="qwen2",
        kind="Qwen2Tokenizer",
        settings={
            "add_bos_token": False,
            "added_tokens_decoder": decoder(**{str(THINK + 1): entry("<new>", special=True)}),
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<new>"],
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
        },
    ),
}
TEMPLATED = {
    "a text": Layout(settings={"chat_template": CHATML}),
    "named ones": Layout(
        settings={
            "chat_template": [
                {"name": "rag", "template": "none"},
                {"name": "default", "template": CHATML},
            ]
        }
    ),
    "a file": Layout(files={"chat_template.jinja": CHATML}),
    "a file beside a text": Layout(
        settings={"chat_template": "none"}, files={"chat_template.jinja": CHATML}
    ),
    "files by name": Layout(
        settings={"chat_template": "none"},
        files={
            "chat_template.jinja": CHATML,
            "additional_chat_templates/tool_use.jinja": TOOLS + CHATML,
            "additional_chat_templates/rag.jinja": "{% none %}",
        },
    ),
    "one for tools among named ones": Layout(
        settings={
            "chat_template": [
                {"name": "default", "template": CHATML},
                {"name": "tool_use", "template": TOOLS + CHATML},
            ]
        }
    ),
    "one that writes the bos": Layout(
        make=llama3,
        settings={
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|eot_id|>",
            "chat_template": WITH_BOS,
        },
    ),
    "one with tokens of added_tokens_decoder": Layout(
        settings={
            "chat_template": CHATML.replace("<|im_start|>", "<new>"),
            "added_tokens_decoder": decoder(**{str(THINK + 1): entry("<new>", special=True)}),
        }
    ),
    "one with a token that the model has a name for": Layout(
        settings={"image_token": "<new>", "chat_template": "{{ image_token }}" + CHATML}
    ),
}


def reference_of(folder: Path) -> Any:
    transformers: Any = import_module("transformers")
    return transformers.AutoTokenizer.from_pretrained(folder)


def check_as_reference(codec: CheckpointCodec, reference: Any) -> None:
    for text in TEXTS:
        ids = codec.encode(text)
        bare = codec.encode(text, add_special_tokens=False)

        assert ids == reference.encode(text)
        assert bare == reference.encode(text, add_special_tokens=False)
        for skip in (True, False):
            shown = codec.decode(ids, skip_special_tokens=skip)
            assert shown == reference.decode(ids, skip_special_tokens=skip)
    assert codec.end_token_id == reference.eos_token_id
    assert codec.vocab_size == len(reference)


@pytest.mark.parametrize("name", ADDED)
def test_ids_and_texts_are_those_of_auto_tokenizer(name: str, tmp_path: Path) -> None:
    folder = ADDED[name].write(tmp_path)

    check_as_reference(load_codec(folder), reference_of(folder))


@pytest.mark.parametrize("name", TEMPLATED)
def test_chats_are_those_of_auto_tokenizer(name: str, tmp_path: Path) -> None:
    folder = TEMPLATED[name].write(tmp_path)
    reference = reference_of(folder)

    check_as_reference(load_codec(folder), reference)
    for add_generation_prompt, tools in product((True, False), (None, [], [TOOL])):
        ids = load_codec(folder).encode_chat(
            MESSAGES,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=None if tools is None else {"tools": tools},
        )
        assert ids == reference.apply_chat_template(
            MESSAGES, add_generation_prompt=add_generation_prompt, tools=tools, return_dict=False
        )


def test_a_template_for_tools_alone_is_none_for_a_conversation_without(tmp_path: Path) -> None:
    files = {"additional_chat_templates/tool_use.jinja": CHATML}
    folder = Layout(settings={"chat_template": CHATML}, files=files).write(tmp_path)

    with pytest.raises(InvalidParameter, match="no chat template named 'default'; give tools in"):
        load_codec(folder).encode_chat(MESSAGES)
    with pytest.raises(ValueError, match="multiple chat templates with no default"):
        reference_of(folder).apply_chat_template(MESSAGES)
    assert load_codec(folder).encode_chat(MESSAGES, template_kwargs={"tools": [TOOL]}) == (
        reference_of(folder).apply_chat_template(
            MESSAGES, tools=[TOOL], add_generation_prompt=True, return_dict=False
        )
    )


def test_a_template_of_a_processor_is_the_last_choice(tmp_path: Path) -> None:
    files = {"chat_template.json": {"chat_template": CHATML}}
    (tmp_path / "alone").mkdir()
    (tmp_path / "beside").mkdir()
    alone = Layout(files=files).write(tmp_path / "alone")
    beside = Layout(settings={"chat_template": PLAIN}, files=files).write(tmp_path / "beside")

    rendered = reference_of(alone).apply_chat_template(
        MESSAGES, chat_template=CHATML, add_generation_prompt=True, return_dict=False
    )
    assert load_codec(alone).encode_chat(MESSAGES) == rendered
    assert load_codec(beside).encode_chat(MESSAGES) == qwen().encode("Hello the catx").ids


GUARDED: dict[str, dict[str, Any]] = {
    "by added_tokens_decoder": {
        "added_tokens_decoder": {str(THINK): entry("<think>", special=True)}
    },
    "by a new entry": {"added_tokens_decoder": {str(THINK + 1): entry("<new>", special=True)}},
    "as end token": {"eos_token": "<think>"},
    "as new padding token": {"pad_token": "<new>"},
    "among additional_special_tokens": {"additional_special_tokens": ["<think>", "<new>"]},
    "among extra_special_tokens": {"extra_special_tokens": {"image_token": "<new>"}},
    "by a name of the model": {"image_token": "<think>"},
}


@pytest.mark.parametrize("how", GUARDED)
def test_no_message_writes_a_token_that_only_the_settings_call_special(
    how: str, tmp_path: Path
) -> None:
    settings = {"chat_template": CHATML, **GUARDED[how]}
    folder = Layout(settings=settings).write(tmp_path)
    on, off = (load_codec(folder, split_special_tokens=split) for split in (True, False))
    message = [{"role": "user", "content": "<think><new>"}]
    special = on.special_tokens_of(["<think>", "<new>"])

    assert special
    assert not special.intersection(on.encode_chat(message))
    assert special <= set(off.encode_chat(message))
    assert on.decode(on.encode_chat(message)).startswith("user\n<think><new>")


def test_a_template_writes_its_tokens_where_prompts_have_none(tmp_path: Path) -> None:
    settings = {"split_special_tokens": True, "chat_template": CHATML}
    codec = load_codec(Layout(settings=settings).write(tmp_path))

    ids = codec.encode_chat([{"role": "user", "content": "<|im_end|>"}])

    assert IM_END not in codec.encode("<|im_end|>")
    assert ids.count(IM_END) == 1


@pytest.mark.slow
def test_a_folder_without_tokenizer_json_names_the_command_that_makes_it(tmp_path: Path) -> None:
    folder = tmp_path / "it's a model"
    folder.mkdir()
    settings = {"add_bos_token": True, "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    layout = Layout(model_type="qwen2", kind="Qwen2Tokenizer", settings=settings)
    layout.write(folder)
    document = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(document["model"]["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    expected = reference_of(folder)

    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing") as refused:
        load_codec(folder)
    _, _, command = str(refused.value).partition("this makes it: python ")
    run(f"{sys.executable} {command.removesuffix('.')}")

    codec = load_codec(folder)
    assert codec.encode("Hello <|im_end|>") == expected.encode("Hello <|im_end|>")
    assert codec.encode("Hello")[0] == expected.bos_token_id


def run(command: str) -> None:
    subprocess.run(["bash", "-c", command], check=True, timeout=HANG_S, capture_output=True)  # noqa: S607


def test_a_folder_without_any_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is missing; copy it from where the model comes"):
        load_codec(tmp_path)


BAD: dict[str, dict[str, Any]] = {
    "no object": {"tokenizer_config.json": {"added_tokens_decoder": ["<new>"]}},
    "no id": {"tokenizer_config.json": {"added_tokens_decoder": {"x": entry("<new>")}}},
    "no token": {"tokenizer_config.json": {"added_tokens_decoder": {"9": "<new>"}}},
    "no content": {"tokenizer_config.json": {"added_tokens_decoder": {"9": {"special": True}}}},
    "no flag": {
        "tokenizer_config.json": {"added_tokens_decoder": {"9": entry("x") | {"lstrip": 3}}}
    },
    "no integer": {"added_tokens.json": {"<new>": "9"}},
    "no JSON": {"added_tokens.json": "{"},
    "no flag of a named token": {
        "special_tokens_map.json": {"eos_token": entry("y") | {"lstrip": 3}}
    },
    "half a pair": {"tokenizer_config.json": {"eos_token": "\ud800"}},
    "a template that is none": {"chat_template.json": {"chat_template": {"default": ""}}},
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_say_nonsense_are_refused_by_name(name: str, tmp_path: Path) -> None:
    [(file, _)] = BAD[name].items()
    folder = Layout(settings=None, files=BAD[name]).write(tmp_path)

    with pytest.raises(CheckpointError, match=file):
        load_codec(folder)
