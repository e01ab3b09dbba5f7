"""Requests of the docs are answered, and answers of the docs are those of the code."""

import json
import shlex
from typing import Any, Final

import httpx
import pytest
from pydantic import TypeAdapter

from tandem_operator.health import Health
from tandem_operator.metrics import Metrics
from tandem_serve.api.steps import StepsReport
from tandem_serve.testing import FakeEngine, client_of, fake_app
from tests.unit.docs import stepped
from tests.unit.docs.kinds import BlockKind, blocks_of
from tests.unit.docs.pages import (
    CONSOLE_LANGUAGES,
    ROOT,
    Block,
    all_blocks,
    console_commands,
)
from tests.unit.serve.local_services import serving

OPERATOR: Final = "http://localhost:8080"
SERVICE: Final = "http://localhost:8000"
SMALLEST: Final = {"prompt": "Hello"}
"""Body in place of one that is left out."""
CURLS: Final = [
    (str(block), line)
    for block in all_blocks(*CONSOLE_LANGUAGES)
    for line in console_commands(block)
    if line.startswith("curl ")
]
HTTP: Final = ROOT / "docs" / "reference" / "http.md"
SCRIPTS: Final = [block for block in blocks_of(BlockKind.PYTHON) if block.page == HTTP]


def request_of(line: str) -> httpx.Request:
    """Return the request of a curl command; its options are those that the docs use.

    Raises:
        KeyError: an option is another one.
    """
    url, headers, body, method = "", dict[str, str](), None, None
    words = iter(shlex.split(line)[1:])
    for word in words:
        if not word.startswith("-"):
            url = word
            continue
        value = next(words).replace("…", "")
        match {"-H": "header", "-d": "body", "-X": "method", "-o": "file"}[word]:
            case "header":
                name, _, text = value.partition(": ")
                headers[name] = text
            case "body":
                body = json.loads(value) if value else SMALLEST
            case "method":
                method = value
    method = method or ("GET" if body is None else "POST")
    return httpx.Request(method, url, headers=headers, json=body)


@pytest.mark.parametrize(("block", "line"), CURLS, ids=[block for block, _ in CURLS])
async def test_every_request_is_answered(block: str, line: str) -> None:
    request = request_of(line)
    url = str(request.url)
    if url.startswith(OPERATOR):
        application = Health(Metrics()).application()
        resources = (route.resource for route in application.router.routes())
        routes = {resource.canonical for resource in resources if resource}
        assert request.url.path in routes, block
        return
    assert url.startswith(SERVICE), block
    content = json.loads(request.content) if request.content else {}
    async with client_of(fake_app(FakeEngine(), model_name=content.get("model", "tiny"))) as client:
        body = {"model": "tiny"} | content if content else None
        answer = await client.request(
            request.method,
            url.removeprefix(SERVICE),
            headers={k: v for k, v in request.headers.items() if k.startswith(("x-", "auth"))},
            json=body,
        )
    assert answer.status_code == 200, answer.text


def test_every_script_runs_and_prints_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(SCRIPTS) == 2
    names: dict[str, Any] = {}
    with serving(FakeEngine()) as url:
        for block in SCRIPTS:
            text = block.text.replace(SERVICE, url).replace("tandem-tiny", "tiny")
            exec(compile(text, str(block), "exec"), names)  # noqa: S102
        names["client"].close()

    assert ":tnatsissa;olleH:resu" in capsys.readouterr().out
    assert names["answer"].choices


def documented_error() -> Block:
    return next(block for block in blocks_of(BlockKind.JSON) if '"error"' in block.lines[0])


async def test_the_error_is_what_a_replica_answers() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        body = {"model": "tiny", "prompt": "a", "temperature": 101.0}
        answer = await client.post("/v1/completions", json=body)

    assert answer.json() == json.loads(documented_error().text)


def test_the_steps_have_the_fields_of_a_report() -> None:
    shown = json.loads(stepped.documented_block().text.replace(", …", ""))
    report = stepped.documented_report()
    whole = TypeAdapter(StepsReport).dump_python(report, mode="json")

    parts = ("limits", "stats")
    assert all(shown.pop(name).items() <= whole.pop(name).items() for name in parts)
    assert shown == whole


def test_every_json_is_checked() -> None:
    assert {*blocks_of(BlockKind.JSON)} == {documented_error(), stepped.documented_block()}
