"""Tables of the reference and the guides name what the code has: routes, parameters, codes, …"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from pydantic import BaseModel

from tandem_engine.scheduler.reason import Reason
from tandem_operator.render.settings import OperatorSettings
from tandem_serve.api.spec import InferenceServiceSpec
from tandem_serve.http.openai.protocol import ChatRequest, CompletionRequest
from tandem_serve.testing import FakeEngine, fake_app
from tests.unit.docs.pages import ROOT, code_spans, markdown_files, name_of, prose, rows
from tests.unit.docs.test_conditions import documented as reasons_documented
from tests.unit.serve.api.test_changes import fields_of
from tools import http_fields

HTTP: Final = ROOT / "docs" / "reference" / "http.md"
KUBERNETES: Final = ROOT / "docs" / "guides" / "kubernetes.md"
MINDIE: Final = ROOT / "docs" / "coming-from-mindie.md"
TROUBLESHOOTING: Final = ROOT / "docs" / "guides" / "troubleshooting.md"
OF_HAPROXY: Final = {"no_replica", "invalid_http"}
_CODE: Final = re.compile(r"[a-z]+(_[a-z]+)+")


def cells_below(header: str, page: Any = HTTP) -> list[tuple[str, ...]]:
    return [cells for first, cells in rows(page) if header in first]


def spans_below(header: str, page: Any = HTTP) -> set[str]:
    """Return the code in a column of a page's tables."""
    found = [(first.index(header), cells) for first, cells in rows(page) if header in first]
    return {span for at, cells in found for span in code_spans(cells[at])}


def test_every_endpoint_is_documented_and_no_other() -> None:
    routes = {
        f"{method} {re.sub(r':[a-z]+', '', route.path)}"
        for route in fake_app(FakeEngine()).routes
        for method in getattr(route, "methods", ())
        if hasattr(route, "path")
    }

    assert spans_below("endpoint") == routes


def test_every_parameter_is_documented_and_no_other() -> None:
    told = {one.partition(".")[0] for one in spans_below("parameter")}

    assert told == {*ChatRequest.model_fields, *CompletionRequest.model_fields}


def test_the_table_of_fields_is_as_the_code_has_it() -> None:
    page = HTTP.read_text()

    assert page == http_fields.written(page), "run python -m tools.http_fields"


def codes() -> Iterator[str]:
    """Yield the codes of errors: the argument `code`, and fields and constants of that name."""
    for path in (ROOT / "serve" / "tandem_serve" / "http").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            value = getattr(node, "value", None)
            if (
                isinstance(node, ast.keyword)
                and node.arg == "code"
                and isinstance(value, ast.Constant)
            ):
                yield str(value.value)


def test_every_code_of_an_error_is_documented() -> None:
    told = {one for one in spans_below("`code`") if _CODE.fullmatch(one)}

    assert {*codes()} <= told
    assert told - {*codes()} - OF_HAPROXY <= texts_with_underscores()


def texts_with_underscores() -> set[str]:
    return {
        node.value
        for path in (ROOT / "serve").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if _CODE.fullmatch(node.value)
    }


def test_every_setting_of_the_operator_is_documented_and_no_other() -> None:
    told = set()
    for cell in cells_below("setting", KUBERNETES):
        prefix = ""
        for span in code_spans(cell[0]):
            name = f"{prefix}{span}" if span.startswith(".") else span
            prefix = name.partition(".")[0]
            told.add(name)

    # The chart's own value, which its roles follow, is the one place to name them.
    assert told == {*settings_of(OperatorSettings)} - {"namespaces"}


def settings_of(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        alias = field.alias or name
        if alias in {"replica", "access"}:
            assert isinstance(field.annotation, type)
            yield from (f"{alias}.{below}" for below in settings_of(field.annotation))
        else:
            yield alias


@pytest.mark.parametrize("page", markdown_files(), ids=name_of)
def test_paths_of_the_manifest_exist(page: Any) -> None:
    known = fields_of(InferenceServiceSpec, "spec")
    text = "\n".join(prose(page))
    named = set(re.findall(r"`(spec(?:\.[a-zA-Z]+)+)`", text))

    unknown = {one for one in named if not any(f"{path}.".startswith(f"{one}.") for path in known)}
    # A list is one field; what is in it has fields of Kubernetes' own.
    assert not {one for one in unknown if not any(one.startswith(f"{path}.") for path in known)}


def test_reasons_of_the_guide_are_those_of_the_reference() -> None:
    named = spans_below("reason", TROUBLESHOOTING)
    waits = {reason.value for reason in Reason}

    assert waits <= named
    assert named - waits <= reasons_documented()


def test_variables_of_the_environment_are_read_somewhere() -> None:
    text = "\n".join(line for page in markdown_files() for line in prose(page))
    named = {*re.findall(r"`(TANDEM_[A-Z_]+)\b", text)}
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("engine", "serve", "operator", "tools")
        for path in (ROOT / folder).rglob("*.py")
    ]

    assert named
    assert not {name for name in named if not any(name in source for source in sources)}


def test_fields_in_the_table_for_mindie_exist() -> None:
    known = fields_of(InferenceServiceSpec, "spec")
    told = set()
    for header, (keys, manifest, *_) in rows(MINDIE):
        if header[:2] == ("key", "manifest"):
            fields = keys if manifest.startswith(("the same", "below")) else manifest
            told |= {span.partition(":")[0] for span in code_spans(fields)} - {"splitFuse"}

    assert len(told) > 40
    assert not {name for name in told if not any(f".{p}".endswith(f".{name}") for p in known)}
