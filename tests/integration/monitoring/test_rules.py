"""The rules of a service, by Prometheus' own promtool: when alerts fire, and when they do not."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem_operator.render.prometheus_rules import alerts
from tests.integration.monitoring.rule_cases import ANOTHER, CASES, SCALING, SLO, Case, requests
from tests.prometheus import Promtool
from tests.unit.operator.render.services import SETTINGS, inference_service, one, rendered

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SPEC = {
    "slo": SLO,
    "scaling": SCALING,
    "engine": {"parallelism": {"tp": 2}, "streamOptions": {"microBatch": True}},
    "resources": {"cpu": 2},
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rules of a service as a file."""
    file = tmp_path_factory.mktemp("rules") / "rules.yaml"
    file.write_text(yaml.safe_dump(one(rendered(SPEC), "PrometheusRule")["spec"]))
    return file


def outcome(
    promtool: Promtool,
    rules: Path,
    document: dict[str, Any],
    folder: Path,
    evaluation: str = "1m",
) -> str:
    """What promtool says of a test; empty: it passes."""
    file = folder / "tests.yaml"
    groups = [group["name"] for group in yaml.safe_load(rules.read_text())["groups"]]
    whole = {
        "rule_files": [str(rules)],
        "evaluation_interval": evaluation,
        # Else by chance: an alert would be one evaluation late now and then.
        "group_eval_order": groups,
        "tests": [document],
    }
    file.write_text(yaml.safe_dump(whole))
    code, said = promtool.run("test", "rules", file)
    return said if code else ""


@pytest.mark.parametrize("slo", [{"ttft": SLO["ttft"]}, {"tpot": SLO["tpot"]}, SLO], ids="+".join)
def test_promtool_finds_no_fault(promtool: Promtool, tmp_path: Path, slo: dict[str, Any]) -> None:
    file = tmp_path / "rules.yaml"
    spec = {**SPEC, "slo": slo}
    file.write_text(yaml.safe_dump(one(rendered(spec), "PrometheusRule")["spec"]))

    code, said = promtool.run("check", "rules", "--lint=all", "--lint-fatal", file)

    assert code == 0, said


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_alerts_fire_when_they_must_and_at_no_other_time(
    promtool: Promtool, rules: Path, tmp_path: Path, case: Case
) -> None:
    document = case.document()
    document["input_series"] += [{"series": name, "values": v} for name, v in ANOTHER.items()]

    assert not outcome(promtool, rules, document, tmp_path, case.evaluation)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_has_ended() -> None:
    fire, end = set[tuple[str, ...]](), set[tuple[str, ...]]()
    for case in CASES:
        so_far = set[tuple[str, ...]]()
        for minute in sorted(case.at):
            end |= so_far - case.at[minute]
            so_far |= case.at[minute]
        fire |= so_far
    known = {
        (alert.name, *(alert.labels[name] for name in ("target", "window") if name in alert.labels))
        for alert in alerts(inference_service(SPEC), SETTINGS)
    }

    assert fire == known
    assert {name for name, *_ in end} == {name for name, *_ in known}


def test_an_alert_tells_people_the_share_and_the_way_on(
    promtool: Promtool, rules: Path, tmp_path: Path
) -> None:
    document = {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values}
            for name, values in requests(ttft=((90, 70),), met=((10, 70),)).items()
        ],
        "alert_rule_test": [
            {"eval_time": "69m", "alertname": "TandemErrorBudgetBurn", "exp_alerts": []}
        ],
    }

    said = outcome(promtool, rules, document, tmp_path)

    assert re.search(r"90% of the requests of the last 1h missed the TTFT target of 1.5s", said)
    assert "Run: tandem explain tiny -n models" in said
    assert "{{" not in said
