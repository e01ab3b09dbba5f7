"""YAML that is no manifest's: one sentence each, whatever it does to a parser."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tandem_serve.api.manifest import ManifestError, load_manifest, parse_manifest
from tandem_serve.api.yaml_text import YamlError, read_documents

SMALLEST = """\
apiVersion: serving.tandem.dev/v1alpha1
kind: InferenceService
metadata: {name: tiny}
spec: {model: {source: SOURCE}}
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 5000 + "]" * 5000, "line 1, column 102: lists and mappings lie in more than 100"),
        ("{a: " * 5000 + "}" * 5000, "line 1, column 402: lists and mappings lie in more than"),
        (f"a: {'9' * 5000}", "line 1, column 4: a number of 5000 characters; the longest that is"),
        (f"a: 0x{'f' * 5000}", "line 1, column 4: a number of 5002 characters"),
        ("a: 2024-13-45", "line 1, column 4: '2024-13-45' is not a value of the kind timestamp"),
        ("a: !!bool maybe", "line 1, column 4: 'maybe' is not a value of the kind bool; correct"),
        ("a: !!int ''", "line 1, column 4: '' is not a value of the kind int"),
        ("a: !!timestamp now", "line 1, column 4: 'now' is not a value of the kind timestamp"),
        ("a: !!set [b]", "line 1, column 4: expected a mapping node, but found sequence"),
        ("null: 1", "line 1, column 1: a key is null, which names no field; write a name"),
        ("a: {~: 1}", "line 1, column 5: a key is null, which names no field"),
        (r'a: "\uD800"', "line 1, column 4: an escape in this text is half of a pair"),
        (r'a: "\UFFFFFFFF"', "line 1, column 7: an escape in this text names no character"),
    ],
)
def test_what_a_parser_fails_over_is_one_sentence(text: str, problem: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_documents(text)

    assert str(caught.value).startswith(problem)


# YAML's other ends of a line, which PyYAML writes as they are, and reads as a space.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x85\u2028\u2029"))


@given(st.recursive(TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)))
def test_what_yaml_writes_is_read_as_it_was(document: Any) -> None:
    assert read_documents(yaml.safe_dump(document, allow_unicode=True)) == [document]


@given(st.text(alphabet="[]{}:,-!&*?|>\"'%@ \n\tab01.e_x~=<\\"))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    with suppress(YamlError):
        read_documents(text)


def test_what_is_no_yaml_is_named_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "isvc.yaml"
    file.write_text("a: b: c")

    with pytest.raises(ManifestError) as caught:
        load_manifest(file)

    problem = "line 1, column 5: mapping values are not allowed here"
    assert caught.value.problems == [f"{file}: {problem}"]


@pytest.mark.parametrize("source", [r'"./a\0b"', "file:///a%00b"])
def test_a_source_with_nul_is_refused(source: str) -> None:
    with pytest.raises(ManifestError, match=r"^spec\.model\.source: has a NUL character"):
        parse_manifest(SMALLEST.replace("SOURCE", source), folder=Path("/"))
