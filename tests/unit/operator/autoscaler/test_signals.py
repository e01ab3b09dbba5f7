"""The query for the signals of a service, and what is made of any answer to it."""

import contextlib
import json
import math
import re
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.autoscaler.signals import (
    InvalidAnswer,
    PodSample,
    Scope,
    Signals,
    read_answer,
    signals_query,
)
from tests.unit.operator.autoscaler.fake_prometheus import (
    HEALTHY,
    NOW_S,
    answer,
    empty_answer,
    of_service,
    scraped,
)

SCOPE = Scope(namespace="demo", service="tiny", window_s=60, ttft_percentile=90, tpot_percentile=95)


def read(document: Any) -> Signals:
    return read_answer(json.dumps(document).encode())


def test_one_query_asks_for_everything_and_tells_it_apart_by_a_label() -> None:
    query = signals_query(SCOPE)

    names = re.findall(r'"signal", "([a-z_]+)"', query)
    assert {*of_service(HEALTHY), "evaluated_at"} <= {*names}
    assert {f"pod_{field.name}" for field in fields(PodSample)} == {
        name for name in names if name.startswith("pod_")
    }
    assert len(names) == len({*names}) == query.count(" or ") + 1


def test_every_selector_names_namespace_and_service() -> None:
    """An unscoped query made unrelated deployments scale (ray#64725)."""
    query = signals_query(SCOPE)

    selectors = re.findall(r"tandem_\w+|process_\w+", query)
    scoped = re.findall(
        r'(?:tandem_\w+|process_\w+)\{namespace="demo",inference_service="tiny"\}', query
    )
    assert len(selectors) == len(scoped)
    assert "exported_" not in query


def test_percentiles_are_those_of_the_targets_and_absent_targets_are_not_asked_for() -> None:
    query = signals_query(SCOPE)
    assert "histogram_quantile(0.9, " in query
    assert "histogram_quantile(0.95, " in query

    ttft_alone = signals_query(
        Scope(namespace="demo", service="tiny", window_s=60, ttft_percentile=99)
    )
    assert "time_per_output_token" not in ttft_alone
    assert "[60s]" in ttft_alone


def test_a_replica_that_is_scraped_twice_counts_once() -> None:
    """Every sum is over the largest of a pod's series."""
    for inner in re.findall(r"(?:sum|avg)(?: by \(le\))? ?\((\w+)", signals_query(SCOPE)):
        assert inner == "max"


def test_warnings_about_an_answer_are_kept() -> None:
    whole = answer(HEALTHY, {})
    assert read(whole).warnings == ()

    assert read({**whole, "warnings": ["a store is away", "b"]}).warnings == (
        "a store is away",
        "b",
    )
    assert read({**whole, "isPartial": True}).warnings == ("the answer is partial",)
    assert len(read({**whole, "warnings": ["x" * 10_000]}).warnings[0]) < 1000


@given(name=st.text(max_size=30))
def test_a_name_ends_no_selector(name: str) -> None:
    scope = Scope(namespace=name, service="tiny", window_s=60)

    text = scope.series("up")
    value = re.fullmatch(
        r'up\{namespace="((?:[^"\\\n]|\\["\\n])*)",inference_service="tiny"\}', text
    )
    assert value is not None
    restored = re.sub(r"\\(.)", lambda one: {"n": "\n"}.get(one[1], one[1]), value[1])
    assert restored == name


def test_an_answer_has_figures_and_replicas() -> None:
    signals = read(answer(HEALTHY, scraped(["a", "b"])))

    assert signals.values == of_service(HEALTHY)
    assert [*signals.pods] == ["a", "b"]
    assert signals.pods["b"].arrival_rate == HEALTHY["arrival_rate"] / 2
    assert signals.pods["b"].queue_age_s == HEALTHY["queue_age_s"]
    assert signals.pods["a"].received == 100
    assert signals.pods["a"].scraped_at == NOW_S - 5
    assert signals.evaluated_at == NOW_S


def test_an_empty_vector_has_nothing() -> None:
    """With honorLabels the labels have other names, and the answer is empty."""
    signals = read(empty_answer())

    assert not signals.values
    assert not signals.pods
    assert math.isnan(signals.evaluated_at)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("NaN", math.nan), ("+Inf", math.inf), ("-Inf", -math.inf), ("1e999", math.inf),
     ("words", math.nan), ("", math.nan), ("12.5", 12.5)],
)  # fmt: skip
def test_numbers_are_read_as_prometheus_writes_them(text: str, expected: float) -> None:
    result = [{"metric": {"signal": "kv_usage"}, "value": [1, text]}]
    found = read({"status": "success", "data": {"resultType": "vector", "result": result}})

    value = found.get("kv_usage")
    assert value is not None
    assert value == expected or (math.isnan(value) and math.isnan(expected))


def test_a_figure_that_comes_twice_is_no_number() -> None:
    one = {"metric": {"signal": "ttft_s"}, "value": [1, "3"]}
    found = read({"status": "success", "data": {"resultType": "vector", "result": [one, one]}})

    value = found.get("ttft_s")
    assert value is not None
    assert math.isnan(value)


def test_a_replica_without_its_counter_is_none() -> None:
    pods = {"a": {"scraped_at": 1.0}, "b": {"received": 1.0}}

    assert not read(answer({}, pods)).pods


def test_requests_of_a_replica_that_is_gone_stay_demand_for_the_window() -> None:
    pods = {**scraped(["a"]), "gone": {"arrival_rate": 2.5}, "odd": {"arrival_rate": math.nan}}

    assert read(answer({}, pods)).ended == {"gone": 2.5}


@pytest.mark.parametrize(
    "document",
    [
        None, [], 3, "text", {}, {"status": "success"}, {"status": "error", "error": "parse error"},
        {"status": "success", "data": {"resultType": "matrix", "result": []}},
        {"status": "success", "data": {"resultType": "vector", "result": {}}},
        {"status": "success", "data": {"resultType": "vector", "result": [{"value": 3}]}},
        {"status": "success", "data": {"resultType": "vector", "result": [{"value": [1, 3]}]}},
    ],
)  # fmt: skip
def test_other_answers_are_refused(document: Any) -> None:
    with pytest.raises(InvalidAnswer):
        read(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda below: (
        st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=8), below, max_size=4)
    ),
    max_leaves=20,
)
METRICS = st.dictionaries(
    st.sampled_from(["signal", "pod", "other"]),
    st.sampled_from(["arrival_rate", "pod_received", "pod_scraped_at", "a", "b", ""]),
    max_size=3,
)
SERIES = st.fixed_dictionaries(
    {
        "metric": METRICS,
        "value": st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12)),
    }
)


@given(document=JSON)
def test_any_document_is_an_answer_or_refused(document: Any) -> None:
    with contextlib.suppress(InvalidAnswer):
        read(document)


@given(result=st.lists(SERIES, max_size=12))
def test_any_vector_gives_numbers(result: list[Any]) -> None:
    body = {"status": "success", "data": {"resultType": "vector", "result": result}}
    found = read(body)

    assert all(isinstance(value, float) for value in found.values.values())
    assert "" not in found.pods


@given(body=st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_refused(body: bytes) -> None:
    with contextlib.suppress(InvalidAnswer):
        read_answer(body)
