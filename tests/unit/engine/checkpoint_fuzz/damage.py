"""Damages that know the format: where a length, an offset, a shape or a type stands."""

import copy
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tests.unit.engine.checkpoint_fuzz.sound import CONFIG, Draft, TensorFile

HOSTILE: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, False, "", "x", "a\nb", "\x00", "\ud800", "../x", "..", ".", "re:(", "re:.*"),
        *(0, -1, 1, 2, 3, 7, 255, 2**15, 2**31, 2**32 - 1, 2**53 + 1, 2**63, 2**64, 10**30),
        *(0.0, -0.0, 0.5, 1.5, 5e-324, 1e-30, 1e30, 1e308, math.inf, -math.inf, math.nan),
        *([], {}, [[]], [None], [1], [2**40], {"a": 1}, "x" * 5000, ["y" * 300] * 100),
        *("BF16", "F64", "I8", "U8", "F8_E4M3", "BOOL", "float16", "int4", "W8A8", "W4A8", "group"),
        *("linear", "yarn", "llama3", "dynamic", "longrope", "Qwen3ForCausalLM", "lm_head"),
        *("model.embed_tokens.weight", "model.safetensors", "config.json", "{{ 1 / 0 }}", "{% if"),
    ]
)
RAW_JSON = st.sampled_from(
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b'{"a": ' + b"[" * 100_000,
        b'{"a": ' + b'{"a": ' * 50_000 + b"1" + b"}" * 50_001,
        b'{"a": ' + b"9" * 10_000 + b"}",
        b'{"vocab_size": 1e999}',
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ]
)
JsonPath = tuple[Any, ...]


def paths(value: Any, at: JsonPath = ()) -> Iterator[JsonPath]:
    """Where anything stands within a JSON value; not within the tokenizer's long vocabulary."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict) and len(value) < 200:
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    for key, one in inner:
        yield (*at, key)
        yield from paths(one, (*at, key))


@st.composite
def damaged(draw: st.DrawFn, draft: Draft) -> Draft:
    """`draft` with one to three damages."""
    draft = copy.deepcopy(draft)
    for _ in range(draw(st.integers(1, 3))):
        change = draw(st.sampled_from(_CHANGES))
        change(draw, draft)
    return draft


def _change_document(draw: st.DrawFn, draft: Draft) -> None:
    name = draw(st.sampled_from(sorted(draft.documents)))
    draft.documents[name] = _changed(draw, draft.documents[name])


def _change_number(draw: st.DrawFn, draft: Draft) -> None:
    """One number of config.json, or of its rope, is another one."""
    config = draft.documents[CONFIG]
    if not isinstance(config, dict):
        return
    rope = config.get("rope_scaling")
    holder = rope if isinstance(rope, dict) and draw(st.booleans()) else config
    keys = [key for key, value in holder.items() if isinstance(value, int | float)]
    if keys:
        holder[draw(st.sampled_from(keys))] = draw(_NUMBERS)


_NUMBERS = st.one_of(
    st.integers(-2, 300),
    st.sampled_from([2**exponent + off for exponent in (16, 24, 31, 40, 62) for off in (-1, 0, 1)]),
    st.floats(),
)


def _changed(draw: st.DrawFn, document: Any) -> Any:
    """A JSON value of which one part is another, is gone, or stands twice."""
    everywhere = list(paths(document))
    if not everywhere:
        return draw(HOSTILE)
    *way, key = draw(st.sampled_from(everywhere))
    holder = document
    for step in way:
        holder = holder[step]
    match draw(st.sampled_from(["replace", "replace", "near", "remove", "move", "rename"])):
        case "remove":
            del holder[key]
        case "near" if isinstance(holder[key], int | float):
            off = draw(st.sampled_from([-2, -1, 1, 2, 3, 8]))
            holder[key] = draw(st.sampled_from([holder[key] + off, holder[key] * off]))
        case "move":
            other = draw(st.sampled_from(everywhere))
            holder[key] = copy.deepcopy(_at(document, other))
        case "rename" if isinstance(holder, dict):
            new = draw(st.sampled_from([f"{key}x", str(key).upper(), "", "\n", "\ud800", *holder]))
            holder[new] = holder.pop(key)
        case _:
            holder[key] = copy.deepcopy(draw(HOSTILE))
    return document


def _at(document: Any, path: JsonPath) -> Any:
    for step in path:
        document = document[step]
    return document


def _change_header(draw: st.DrawFn, draft: Draft) -> None:
    file = draft.tensors[draw(st.sampled_from(sorted(draft.tensors)))]
    named = sorted(name for name in file.header if isinstance(file.header[name], dict))
    if not named:
        return
    entry = file.header[draw(st.sampled_from(named))]
    choice = draw(st.sampled_from(["any", "offset", "shape", "dtype", "data", "overlap", "twice"]))
    if choice == "any" or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        file.header = _changed(draw, file.header)
    elif choice == "offset":
        entry["data_offsets"] = _offsets(draw, file)
    elif choice == "shape":
        entry["shape"] = draw(st.lists(_SIZE, max_size=4))
    elif choice == "dtype":
        entry["dtype"] = draw(st.sampled_from(["F64", "F32", "F16", "BF16", "I64", "I32", "I8"]))
    elif choice == "data":
        _change_data(draw, file)
    elif choice == "overlap":
        other = file.header[draw(st.sampled_from(named))]
        entry["data_offsets"] = other.get("data_offsets")
    else:
        file.header[draw(st.sampled_from(["model.made.up.weight", "lm_head.weight", "a\nb"]))] = (
            copy.deepcopy(entry)
        )


_SIZE = st.sampled_from([0, 1, 2, 8, 16, 24, 272, 2**20, 2**31, 2**40, 2**62, 2**64])


def _offsets(draw: st.DrawFn, file: TensorFile) -> list[int]:
    ends = st.sampled_from(
        [-1, 0, 1, 2, 7, len(file.data), len(file.data) + 1, 2**40, 2**63, 2**64]
    )
    return draw(st.lists(st.one_of(ends, st.integers(0, len(file.data))), min_size=1, max_size=3))


def _change_data(draw: st.DrawFn, file: TensorFile) -> None:
    """Values that are no numbers, or fewer or more of them."""
    match draw(st.sampled_from(["cut", "more", "ones", "zeros"])):
        case "cut":
            file.data = file.data[: draw(st.integers(0, len(file.data)))]
        case "more":
            file.data += bytes(draw(st.integers(1, 100)))
        case "ones":
            at = draw(st.integers(0, len(file.data)))
            file.data = file.data[:at] + b"\xff" * 64 + file.data[at + 64 :]
        case _:
            file.data = bytes(len(file.data))


def _change_file(draw: st.DrawFn, draft: Draft) -> None:
    name = draw(st.sampled_from(draft.names))
    match draw(st.sampled_from(["gone", "folder", "cut", "flip", "length", "text"])):
        case "gone":
            draft.gone.add(name)
        case "folder":
            draft.folders.add(name)
        case "cut":
            whole = draft.bytes_of(name)
            draft.raw[name] = whole[: draw(st.integers(0, len(whole)))]
        case "flip":
            flipped = bytearray(draft.bytes_of(name))
            for at in draw(st.lists(st.integers(0, max(0, len(flipped) - 1)), max_size=8)):
                flipped[at : at + 1] = bytes([draw(st.integers(0, 255))])
            draft.raw[name] = bytes(flipped)
        case "length" if name in draft.tensors:
            length = draw(st.sampled_from([0, 1, 2, 8, 2**20, 2**31, 2**63, 2**64 - 1]))
            draft.raw[name] = length.to_bytes(8, "little") + draft.bytes_of(name)[8:]
        case _:
            text = draw(RAW_JSON)
            draft.raw[name] = (
                len(text).to_bytes(8, "little") + text if name in draft.tensors else text
            )


_CHANGES = (
    *((_change_document,) * 4),
    *((_change_number,) * 3),
    *((_change_header,) * 5),
    *((_change_file,) * 2),
)
