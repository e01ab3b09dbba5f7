"""Series in promtool's notation, and the alerts that fire for them at some minutes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

SLO: Final = {
    "ttft": {"target": "1.5s", "percentile": 90},
    "tpot": {"target": "80ms", "percentile": 99},
}
SCALING: Final = {"mode": "Auto", "maxReplicas": 8}
PHASES: Final = ("prefill", "decode")
RESULTS: Final = ("met", "ttft", "tpot", "both", "failed")

Phases = tuple[tuple[float, int], ...]
"""(amount a minute, minutes), one after the other."""
Firing = frozenset[tuple[str, ...]]
"""Alerts by name, and where it has them target and window."""

NONE: Final[Firing] = frozenset()


def burning(target: str, *windows: str) -> Firing:
    return frozenset(("TandemErrorBudgetBurn", target, window) for window in windows)


def firing(*names: str) -> Firing:
    return frozenset((name,) for name in names)


def replica(series: str, pod: str = "a", service: str = "tiny", **labels: str) -> str:
    own = {"namespace": "models", "inference_service": service, "pod": pod, **labels}
    return _named(series, own)


def operator(series: str, service: str = "tiny", **labels: str) -> str:
    return _named(
        f"tandem_operator_autoscaler_{series}",
        {"namespace": "models", "name": service, "pod": "op", **labels},
    )


def _named(series: str, labels: Mapping[str, str]) -> str:
    pairs = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{series}{{{pairs}}}"


def counter(*phases: tuple[float, int]) -> str:
    """Values of a counter that grows by so much a minute for so many minutes."""
    parts, total = list[str](), 0.0
    for amount, minutes in phases:
        parts.append(f"{total + (amount if parts else 0):g}+{amount:g}x{minutes - 1}")
        total += amount * (minutes - 1 if len(parts) == 1 else minutes)
    return " ".join(parts)


def gauge(*phases: tuple[float, int]) -> str:
    """Values of a gauge that has each value for so many minutes."""
    return " ".join(f"{value:g}x{minutes - 1}" for value, minutes in phases)


def requests(service: str = "tiny", **phases: Phases) -> dict[str, str]:
    """The counter of requests by result; results that are not given stay at 0."""
    minutes = max((sum(each for _, each in phase) for phase in phases.values()), default=60)
    return {
        replica("tandem_slo_requests_total", service=service, result=result): counter(
            *phases.get(result, ((0, minutes),))
        )
        for result in RESULTS
    }


@dataclass(frozen=True, kw_only=True)
class Case:
    """A course of series, and what fires at some minutes of it."""

    name: str
    series: Mapping[str, str]
    at: Mapping[int, Firing]
    absent: tuple[str, ...] = ()
    """Expressions that have no value at any of these minutes."""

    interval: str = "1m"
    """Time between two values of the series."""

    evaluation: str = "1m"
    """Time between two evaluations of the rules."""

    def document(self) -> dict[str, Any]:
        """The case as promtool reads it."""
        fired = 'count by (alertname, target, window) (ALERTS{alertstate="firing"})'
        tests: list[dict[str, Any]] = []
        for minute, expected in self.at.items():
            samples = [{"labels": _labels(one), "value": 1} for one in sorted(expected)]
            tests.append({"expr": fired, "eval_time": f"{minute}m", "exp_samples": samples})
            tests += [
                {"expr": expr, "eval_time": f"{minute}m", "exp_samples": []} for expr in self.absent
            ]
        return {
            "name": self.name,
            "interval": self.interval,
            "input_series": [
                {"series": name, "values": values} for name, values in self.series.items()
            ],
            "promql_expr_test": tests,
        }


def _labels(alert: tuple[str, ...]) -> str:
    names = ("alertname", "target", "window")
    return _named("", dict(zip(names, alert, strict=False)))


WINDOWS: Final = ("1h", "6h", "3d")
# Misses everything, holds, is not scraped: nothing of it may count for the service of the cases.
ANOTHER: Final = {
    **requests("another", both=((100, 300),)),
    replica("up", service="another"): "0x300",
    operator("hold", "another", reason="MetricsStale"): "1x300",
    operator("last_decision_timestamp_seconds", "another"): "0x300",
}


def burn_cases() -> Iterator[Case]:
    yield Case(
        name="nearly all miss TTFT, then none",
        series=requests(ttft=((90, 70), (0, 60)), met=((10, 70), (100, 60))),
        at={
            0: NONE,
            69: burning("ttft", *WINDOWS),
            # The 5 minutes are clean, the hour is not.
            80: burning("ttft", "6h", "3d"),
            # Nor are the 30 minutes missed any more, but the 6 hours are.
            110: burning("ttft", "3d"),
        },
    )
    yield Case(
        name="misses beyond 6 times the budget, not 14.4 times",
        series=requests(tpot=((10, 120),), met=((90, 120),)),
        at={110: burning("tpot", "6h", "3d")},
    )
    yield Case(
        name="misses slightly beyond the budget",
        series=requests(ttft=((12, 120),), met=((88, 120),)),
        at={110: burning("ttft", "3d")},
    )
    yield Case(
        name="misses within the budget of each",
        series=requests(ttft=((90, 120),), tpot=((9, 120),), met=((901, 120),)),
        at={30: NONE, 110: NONE},
    )
    yield Case(
        name="each keeps its budget, both at once miss 10.9 %: no target is broken",
        series=requests(ttft=((100, 120),), tpot=((9, 120),), met=((891, 120),)),
        at={110: NONE},
    )
    yield Case(
        name="failed requests miss each target",
        series=requests(failed=((100, 120),)),
        at={110: burning("ttft", *WINDOWS) | burning("tpot", *WINDOWS)},
    )
    yield Case(
        name="requests that miss both count for each",
        series=requests(both=((20, 120),), met=((80, 120),)),
        at={110: burning("ttft", "3d") | burning("tpot", *WINDOWS)},
    )
    yield Case(
        name="no request any more",
        # Values for two minutes: three days at a minute take as long as all other cases together.
        series=requests(ttft=((200, 15), (0, 2200))),
        at={30: burning("ttft", *WINDOWS), 4395: NONE},
        interval="2m",
        evaluation="5m",
    )
    yield Case(
        name="never a request: ratios have no value, not NaN",
        series=requests(met=((0, 120),)),
        at={60: NONE, 110: NONE},
        absent=(
            '{__name__=~"inference_service:.*:ratio_rate.*"}',
            '{__name__=~"inference_service:.*:percentile_rate.*"}',
        ),
    )
    yield Case(
        name="too few requests for a share, all of them missed",
        series=requests(ttft=((0.25, 70),)),
        at={65: NONE},
    )
    yield Case(
        name="a burst that the budget can bear",
        series=requests(ttft=((0, 300), (50, 2), (0, 30)), met=((100, 332),)),
        at={303: NONE, 330: NONE},
    )
    yield Case(name="no series at all", series={}, at={60: NONE})


def replica_cases() -> Iterator[Case]:
    waiting = replica("tandem_request_wait_seconds_total", reason="kv_blocks")
    usage = replica("tandem_kv_cache_usage_ratio")
    yield Case(
        name="a full KV cache with requests that wait for it, until there is room",
        series={usage: gauge((0.5, 10), (0.99, 30), (0.5, 30)), waiting: counter((120, 70))},
        at={9: NONE, 15: NONE, 25: firing("TandemKvCacheFull"), 45: NONE},
    )
    yield Case(
        name="a full KV cache, and no request waits: a well used one",
        series={usage: gauge((0.99, 60)), waiting: counter((0, 60))},
        at={40: NONE},
    )
    yield Case(
        name="requests wait for something else",
        series={
            usage: gauge((0.99, 60)),
            waiting: counter((0, 60)),
            replica("tandem_request_wait_seconds_total", reason="batch_size"): counter((120, 60)),
        },
        at={40: NONE},
    )
    yield Case(
        name="one of two replicas cannot be scraped for 10 minutes",
        series={
            replica("up", "a"): gauge((1, 60)),
            replica("up", "b"): gauge((1, 10), (0, 10), (1, 40)),
        },
        at={9: NONE, 12: NONE, 17: firing("TandemReplicaNotScraped"), 25: NONE},
    )
    ready = operator("ready_replicas")
    yield Case(
        name="a replica that is no target, until it is one",
        series={
            ready: gauge((2, 60)),
            replica("up", "a"): gauge((1, 60)),
            replica("up", "b"): "_x29 1x30",
        },
        at={5: NONE, 20: firing("TandemReplicaWithoutTarget"), 45: NONE},
    )
    yield Case(
        name="no replica is a target",
        series={ready: gauge((1, 60))},
        at={5: NONE, 20: firing("TandemReplicaWithoutTarget")},
    )
    yield Case(
        name="a new replica is scraped before it is ready",
        series={
            ready: gauge((1, 60)),
            replica("up", "a"): gauge((1, 60)),
            replica("up", "b"): gauge((1, 60)),
        },
        at={40: NONE},
    )


def scaling_cases() -> Iterator[Case]:
    desired = operator("desired_replicas")
    yield Case(
        name="up and down three times, then steady",
        series={desired: gauge((2, 10), *((3, 5), (2, 5)) * 3, (2, 100))},
        at={15: NONE, 29: NONE, 33: firing("TandemReplicasFlapping"), 110: NONE},
    )
    yield Case(
        name="a ramp up, and back down",
        series={
            desired: gauge(
                *((n, 3) for n in (1, 2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 2, 1)), (1, 30)
            )
        },
        at={24: NONE, 44: NONE, 70: NONE},
    )
    yield Case(
        name="another operator leads: its series is a new one",
        series={
            desired: gauge((3, 20)) + " stale",
            desired.replace('"op"', '"op-2"'): "_x19 3x40",
        },
        at={30: NONE, 50: NONE},
    )
    hold = operator("hold", reason="MetricsStale")
    yield Case(
        name="metrics that cannot be trusted for 10 minutes",
        series={hold: "_x9 1x10 stale"},
        at={9: NONE, 12: NONE, 16: firing("TandemAutoscalerBlind"), 25: NONE},
    )
    decided = operator("last_decision_timestamp_seconds")
    yield Case(
        name="no decision for a while, then again",
        series={decided: "0+60x20 1200x19 2460+60x20"},
        at={20: NONE, 24: NONE, 27: firing("TandemAutoscalerStuck"), 45: NONE},
    )
    yield Case(
        name="the operator is gone, and its series with it",
        series={decided: "0+60x20 stale"},
        at={20: NONE, 24: NONE, 40: firing("TandemAutoscalerStuck")},
    )


def micro_batch_cases() -> Iterator[Case]:
    prefill, decode = (replica("tandem_micro_batch_state", phase=one) for one in PHASES)
    steps = replica("tandem_step_tokens_count")
    yield Case(
        name="micro-batches that are off for 7 hours under load, until one gate opens",
        series={
            prefill: gauge((0, 430), (1, 60)),
            decode: gauge((0, 490)),
            steps: counter((60, 490)),
        },
        at={350: NONE, 400: firing("TandemMicroBatchesIdle"), 440: NONE},
    )
    yield Case(
        name="micro-batches of a replica without load",
        series={prefill: gauge((0, 490)), decode: gauge((0, 490)), steps: counter((1, 490))},
        at={400: NONE, 480: NONE},
    )
    yield Case(
        name="micro-batches that one replica of two cuts",
        series={
            prefill: gauge((0, 490)),
            replica("tandem_micro_batch_state", "b", phase="prefill"): gauge((1, 490)),
            steps: counter((60, 490)),
        },
        at={480: NONE},
    )


CASES: Final = (*burn_cases(), *replica_cases(), *scaling_cases(), *micro_batch_cases())
