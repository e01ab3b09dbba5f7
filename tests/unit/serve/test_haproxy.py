"""What `tandem-haproxy` makes of the configurations that Ray Serve writes."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from jinja2 import Environment

from tandem_serve import haproxy

REAL = haproxy.real_haproxy()
CLOSED = "frontend http_frontend\n    option httpclose\n"
# The file alone: all of Ray Serve need not be imported for a text.
RAY = Path(find_spec("ray").origin).parent  # type: ignore[union-attr,arg-type]
TEMPLATES = run_path(str(RAY / "serve/_private/haproxy_templates.py"))
DRAINING = {"healthy": False, "status": 503, "health_message": "This node is being drained."}
SERVING = {"healthy": True, "status": 200, "health_message": "success"}


def configuration(health: Mapping[str, Any], *, backends: int) -> str:
    """The frontend, with the rules for health checks as Serve renders them."""
    rules = (
        Environment(autoescape=False)  # noqa: S701  # no HTML
        .from_string(TEMPLATES["HAPROXY_HEALTHZ_RULES_TEMPLATE"])
        .render(
            config={"health_check_endpoint": "/-/healthz", "is_head": False},
            health_info=health,
            backends=[{"name": f"app-{number}"} for number in range(backends)],
        )
    )
    return f"defaults\n    mode http\nfrontend http_frontend\n    bind :8000\n{rules}"


def test_a_proxy_that_refuses_health_checks_closes_its_connections() -> None:
    assert CLOSED in haproxy.closing(configuration(DRAINING, backends=2))


@pytest.mark.parametrize("backends", [0, 1, 3])
def test_a_proxy_that_serves_stays_as_it_is(backends: int) -> None:
    serving = configuration(SERVING, backends=backends)

    assert haproxy.closing(serving) == serving


def test_a_configuration_without_health_checks_stays_as_it_is() -> None:
    assert haproxy.closing("frontend http_frontend\n    bind :8000\n") == (
        "frontend http_frontend\n    bind :8000\n"
    )


def test_it_becomes_ray_s_own_haproxy_with_the_same_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: became.append((path, arguments)))
    monkeypatch.setenv(haproxy.BINARY, "/this/command/itself")
    file = tmp_path / "haproxy.cfg"
    file.write_text(configuration(DRAINING, backends=1))

    haproxy.main(["-db", "-f", str(file), "-sf", "12"])

    assert became == [(REAL, [REAL, "-db", "-f", str(file), "-sf", "12"])]
    assert CLOSED in file.read_text()
    assert Path(REAL).name == "haproxy"
