import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandem_serve.testing import BEGIN, FakeEngine, client_of, fake_app

LABELS = ("path", "method", "code")
MODEL = {
    "id": "tiny",
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "tandem",
    "max_model_len": 128,
}


async def test_the_served_model_is_listed() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        listed = await client.get("/v1/models")
        alone = await client.get("/v1/models/tiny")

    assert listed.json() == {"object": "list", "data": [MODEL]}
    assert alone.json() == MODEL


async def test_the_name_of_a_model_may_have_slashes() -> None:
    async with client_of(fake_app(FakeEngine(), model_name="lab/tiny")) as client:
        response = await client.get("/v1/models/lab/tiny")

    assert response.json()["id"] == "lab/tiny"


async def test_another_model_is_not_found() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.get("/v1/models/large")

    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


async def test_a_healthy_engine() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.get("/health")

    assert response.status_code == 200
    assert response.json() == {"status": "ok", "model": "tiny"}


async def test_an_engine_that_stopped_is_not_healthy() -> None:
    engine = FakeEngine()
    engine.stop_because("The device is gone.")
    async with client_of(fake_app(engine)) as client:
        response = await client.get("/health")

    assert response.status_code == 503
    assert response.json()["error"]["message"] == "The device is gone."


async def test_an_engine_that_starts_is_not_healthy_yet() -> None:
    async with client_of(fake_app(None)) as client:
        health = await client.get("/health")
        models = await client.get("/v1/models")
        metrics = await client.get("/metrics")

    assert health.status_code == 503
    assert models.json()["data"][0]["max_model_len"] is None
    assert "tandem_http_requests_total" in metrics.text


async def test_metrics_are_the_engines_and_this_layers() -> None:
    async with client_of(fake_app(FakeEngine(), max_link_num=1)) as client:
        for _ in range(2):
            await client.post("/v1/completions", json={"model": "tiny", "prompt": "a"})
        await client.post("/v1/completions", json={})
        await client.get("/v1/models/large")
        await client.get("/made/up")
        response = await client.get("/metrics")

    samples = {
        (sample.name, *(sample.labels[name] for name in LABELS if name in sample.labels)): (
            sample.value
        )
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    assert response.headers["content-type"].startswith("text/plain; version=")
    for name in ("process_start_time_seconds", "tandem_exposition_timestamp_seconds"):
        assert 0 <= time.time() - samples.pop((name,)) < 3600
    assert samples == {
        ("fake_requests_total",): 2.0,
        ("tandem_http_requests_total", "/v1/completions", "POST", "200"): 2.0,
        ("tandem_http_requests_total", "/v1/completions", "POST", "400"): 1.0,
        ("tandem_http_requests_total", "/v1/models/{model:path}", "GET", "404"): 1.0,
        ("tandem_http_requests_total", "unknown", "GET", "404"): 1.0,
        ("tandem_http_requests_refused_total",): 0.0,
        ("tandem_http_requests_in_flight",): 0.0,
    }


async def test_no_caller_makes_up_a_label() -> None:
    app = fake_app(FakeEngine())
    async with client_of(app) as client:
        for _ in range(2):
            await client.request("MADE-UP", "/made/up")
        await client.request("MADE-UP", "/v1/models", headers={"authorization": "Bearer made-up"})
        await client.post(
            "/v1/completions", json={"model": "made-up", "prompt": "made-up", "user": "made-up"}
        )

    assert {labels[:2] for labels, _ in app.state.http.counts.items()} == {
        ("unknown", "unknown"),
        ("/v1/models", "unknown"),
        ("/v1/completions", "POST"),
    }


async def test_the_callers_request_id_is_kept() -> None:
    engine = FakeEngine()
    async with client_of(fake_app(engine)) as client:
        response = await client.post(
            "/v1/completions",
            json={"model": "tiny", "prompt": ["a", "b"]},
            headers={"x-request-id": "mine"},
        )

    assert response.headers["x-request-id"] == "mine"
    assert [s.request_id for s in engine.submitted] == ["mine-00000001-0", "mine-00000001-1"]


@pytest.mark.parametrize("given", ["", "two words", "x" * 129])
async def test_an_unfit_request_id_is_replaced(given: str) -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.get("/v1/models", headers={"x-request-id": given})

    assert response.headers["x-request-id"] == f"{1:032x}"


async def test_the_request_id_may_be_left_to_the_proxy() -> None:
    async with client_of(fake_app(FakeEngine(), returns_request_id=False)) as client:
        response = await client.get("/v1/models")

    assert "x-request-id" not in response.headers


async def test_errors_have_the_request_id_too() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.get("/made/up", headers={"x-request-id": "mine"})

    assert response.headers["x-request-id"] == "mine"


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"prompt": "ab"}, [BEGIN, 97, 98]),
        ({"prompt": "ab", "add_special_tokens": False}, [97, 98]),
        (
            {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False},
            [BEGIN, *b"user:a;"],
        ),
    ],
)
async def test_tokenize(body: dict[str, Any], tokens: list[int]) -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post("/tokenize", json=body)

    assert response.json() == {
        "count": len(tokens),
        "max_model_len": 128,
        "tokens": tokens,
        "token_strs": None,
    }


async def test_tokenize_may_say_what_the_tokens_are() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post(
            "/tokenize", json={"model": "tiny", "prompt": "ab", "return_token_strs": True}
        )

    assert response.json()["token_strs"] == ["<begin>", "a", "b"]


async def test_detokenize_gives_the_text_back() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post("/detokenize", json={"tokens": [BEGIN, 97, 98]})

    assert response.json() == {"prompt": "<begin>ab"}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "large"}, 404, "model"),
        ("/tokenize", {"messages": [{"role": "x"}]}, 400, "messages[0].role"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
            400,
            "add_special_tokens",
        ),
        ("/detokenize", {"tokens": [258]}, 400, "tokens"),
        ("/detokenize", {"tokens": "ab"}, 400, "tokens"),
        ("/detokenize", {}, 400, "tokens"),
    ],
)
async def test_a_body_that_cannot_be_tokenized_is_refused(
    path: str, body: dict[str, Any], status: int, param: str
) -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post(path, json=body)

    assert response.status_code == status
    assert response.json()["error"]["param"] == param
