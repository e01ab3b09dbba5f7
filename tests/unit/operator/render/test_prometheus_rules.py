"""The PrometheusRule of a service: series, thresholds, labels and links."""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.slo import LatencyTarget
from tandem_operator.k8s import names
from tandem_operator.render.alerts import BURNS, error_budget
from tandem_operator.render.prometheus_rules import alerts, recording_rules
from tandem_operator.render.settings import OperatorSettings, PrometheusRuleSettings
from tests.unit.docs.pages import ROOT, anchors
from tests.unit.operator.render.services import SETTINGS, inference_service, one, rendered

BOTH = {"ttft": {"target": "1.5s"}, "tpot": {"target": "80ms", "percentile": 99}}
AUTO = {"mode": "Auto", "maxReplicas": 4}
MICRO_BATCHES = {
    "engine": {"parallelism": {"tp": 2}, "streamOptions": {"microBatch": True}},
    "resources": {"cpu": 2},
}
OF_REPLICAS = re.compile(
    r"\b(up|tandem_(?!operator)[a-z_]+|inference_service:[a-z0-9_:]+)\{([^}]*)\}"
)
OF_OPERATOR = re.compile(r"\b(tandem_operator_[a-z_]+)\{([^}]*)\}")


def settings(**changes: Any) -> OperatorSettings:
    return SETTINGS.model_copy(update={"prometheus_rule": PrometheusRuleSettings(**changes)})


def rules(slo: dict[str, Any], under: OperatorSettings = SETTINGS) -> Iterator[Any]:
    """Every rule of a service with an autoscaler, as a manifest."""
    spec = {"slo": slo, "scaling": AUTO, **MICRO_BATCHES}
    for group in one(rendered(spec, under), "PrometheusRule")["spec"]["groups"]:
        yield from group["rules"]


def kinds(spec: dict[str, Any], under: OperatorSettings = SETTINGS) -> set[str]:
    return {manifest["kind"] for manifest in rendered(spec, under).objects}


def target(percentile: int) -> LatencyTarget:
    return LatencyTarget(target="1s", percentile=percentile)


@pytest.mark.parametrize("spec", [{}, {"slo": {}}])
def test_a_service_without_a_target_has_no_rule(spec: dict[str, Any]) -> None:
    assert "PrometheusRule" not in kinds(spec)


def test_rules_that_were_there_before_are_emptied() -> None:
    [emptied] = rendered().emptied

    assert (emptied["kind"], emptied["metadata"]["name"]) == ("PrometheusRule", "tiny-slo")
    assert rendered({"slo": BOTH}).emptied == ()


def test_the_settings_can_switch_rules_off() -> None:
    off = settings(enabled=False)

    assert "PrometheusRule" not in kinds({"slo": BOTH}, off)
    assert rendered({}, off).emptied == ()


@pytest.mark.parametrize(("enabled", "may_lack"), [("auto", {"PrometheusRule"}), (True, set())])
def test_the_kind_may_be_missing_unless_it_is_asked_for(
    *, enabled: Any, may_lack: set[str]
) -> None:
    assert rendered({"slo": BOTH}, settings(enabled=enabled)).may_lack == may_lack


def test_labels_of_the_settings_stand_beside_our_own() -> None:
    labels = {"release": "prometheus", names.SERVICE: "another"}

    found = one(rendered({"slo": BOTH}, settings(labels=labels)), "PrometheusRule")

    assert found["metadata"]["labels"] == {"release": "prometheus", **names.object_labels("tiny")}


def test_every_series_is_taken_of_this_service_alone() -> None:
    for rule in rules(BOTH):
        of_replicas = OF_REPLICAS.findall(rule["expr"])
        of_operator = OF_OPERATOR.findall(rule["expr"])

        assert of_replicas or of_operator
        for _, labels in of_replicas:
            assert labels.startswith('namespace="models", inference_service="tiny"')
        for _, labels in of_operator:
            assert labels.startswith('namespace="models", name="tiny"')
        bare = OF_OPERATOR.sub("", OF_REPLICAS.sub("", rule["expr"]))
        assert "tandem" not in bare


def test_every_recorded_series_that_is_used_is_recorded() -> None:
    recorded = {rule["record"] for rule in rules(BOTH) if "record" in rule}
    used = set(
        re.findall(r"inference_service:[a-z0-9_:]+", " ".join(r["expr"] for r in rules(BOTH)))
    )

    assert used < recorded


@pytest.mark.parametrize("slo", [{"ttft": BOTH["ttft"]}, {"tpot": BOTH["tpot"]}, BOTH])
def test_each_target_that_is_given_has_a_budget_of_its_own(slo: dict[str, Any]) -> None:
    burning = [rule for rule in rules(slo) if rule.get("alert") == "TandemErrorBudgetBurn"]

    assert {rule["labels"]["target"] for rule in burning} == set(slo)
    assert len(burning) == len(BURNS) * len(slo)


def test_rules_of_one_record_differ_in_a_label() -> None:
    recorded = recording_rules(inference_service({"slo": BOTH}), ["5m"])
    told_apart = [(rule.record, *sorted(rule.labels.items())) for rule in recorded]

    assert len(told_apart) == len(set(told_apart))


def test_thresholds_are_multiples_of_the_budget() -> None:
    fast, medium, slow = (burn.threshold(target(99)) for burn in BURNS)

    assert (fast, medium, slow) == (Decimal("0.144"), Decimal("0.06"), Decimal("0.01"))


def test_a_large_budget_does_not_put_an_alert_out_of_reach() -> None:
    """14.4 times the budget of P90 would be more misses than there are requests."""
    fast, medium, slow = (burn.threshold(target(90)) for burn in BURNS)

    assert (fast, medium, slow) == (Decimal("0.8"), Decimal("0.5"), Decimal("0.1"))


@given(percentile=st.integers(1, 99))
def test_every_alert_can_fire_and_none_within_the_budget(percentile: int) -> None:
    budget = error_budget(target(percentile))
    thresholds = [burn.threshold(target(percentile)) for burn in BURNS]

    assert thresholds == sorted(thresholds, reverse=True)
    for threshold in thresholds:
        assert budget <= threshold < 1


def test_the_rates_take_the_shares_of_a_budget_of_30_days_that_they_name() -> None:
    for burn in BURNS:
        share = burn.rate * burn.long_s / (30 * 86400)

        assert f"{(100 * share).normalize():f} %" == burn.budget


def test_every_alert_says_what_and_how_bad_and_links_to_its_runbook() -> None:
    found = [rule for rule in rules(BOTH) if "alert" in rule]
    page = ROOT / "docs" / "guides" / "alerts.md"

    assert len(found) == 13
    for rule in found:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert ROOT / path == page
        assert anchor in anchors(page), rule["alert"]
        assert rule["annotations"]["summary"].startswith("models/tiny")
        assert rule["annotations"]["description"].endswith((".", "tandem explain tiny -n models"))


def test_the_page_of_alerts_explains_no_other() -> None:
    page = (ROOT / "docs" / "guides" / "alerts.md").read_text()
    named = set(re.findall(r"^## (Tandem\w+)$", page, re.MULTILINE))

    spec = {"slo": BOTH, "scaling": AUTO, **MICRO_BATCHES}
    assert named == {alert.name for alert in alerts(inference_service(spec), SETTINGS)}


def test_the_runbook_may_be_elsewhere() -> None:
    under = settings(runbook_url="https://docs.test/alerts")
    found = [rule["annotations"]["runbook_url"] for rule in rules(BOTH, under) if "alert" in rule]

    assert all(url.startswith("https://docs.test/alerts#tandem") for url in found)


def test_micro_batches_that_are_off_are_told_of_where_they_are_asked_for() -> None:
    def names(spec: dict[str, Any]) -> set[str]:
        return {alert.name for alert in alerts(inference_service({"slo": BOTH, **spec}), SETTINGS)}

    assert names(MICRO_BATCHES) - names({}) == {"TandemMicroBatchesIdle"}


@pytest.mark.parametrize(
    ("mode", "has_them"), [("Auto", True), ("Recommend", True), ("External", False)]
)
def test_alerts_about_decisions_are_there_where_some_are_made(mode: str, *, has_them: bool) -> None:
    spec = {"slo": BOTH, "scaling": {**AUTO, "mode": mode}}
    found = {alert.name for alert in alerts(inference_service(spec), SETTINGS)}

    assert ({"TandemAutoscalerBlind", "TandemAutoscalerStuck"} <= found) == has_them
