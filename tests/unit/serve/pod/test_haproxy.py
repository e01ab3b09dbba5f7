"""Changes that `tandem-haproxy` makes to the configurations that Ray Serve writes."""

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from jinja2 import Environment

from tandem_serve.pod import haproxy

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
    assert CLOSED in haproxy.close_when_draining(configuration(DRAINING, backends=2))


@pytest.mark.parametrize("backends", [0, 1, 3])
def test_a_proxy_that_serves_stays_as_it_is(backends: int) -> None:
    serving = configuration(SERVING, backends=backends)

    assert haproxy.close_when_draining(serving) == serving


def test_a_configuration_without_health_checks_stays_as_it_is() -> None:
    assert haproxy.close_when_draining("frontend http_frontend\n    bind :8000\n") == (
        "frontend http_frontend\n    bind :8000\n"
    )


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that a process of `main` became."""
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: commands.append([path, *arguments]))
    monkeypatch.setenv(haproxy.BINARY, "/this/command/itself")
    return commands


def test_it_becomes_ray_s_own_haproxy_with_the_same_arguments(
    tmp_path: Path, became: list[list[str]]
) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text(configuration(DRAINING, backends=1))

    haproxy.main(["-db", "-f", str(file), "-sf", "12"])

    [[path, name, *arguments]] = became
    assert path == name == REAL
    assert Path(REAL).name == "haproxy"
    read = arguments[2]
    # Serve looks for the file's own path in the command line.
    assert arguments == ["-db", "-f", read, "-L", str(file), "-sf", "12"]
    assert CLOSED in Path(read).read_text()


def test_what_serve_writes_meanwhile_is_not_what_haproxy_reads(
    tmp_path: Path, became: list[list[str]]
) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text(SERVE_S)
    haproxy.main(["-f", str(file)])

    file.write_text(SERVE_S)

    assert "timeout http-request" in Path(became[0][3]).read_text()


DEFAULTS = "defaults\n    mode http\n    timeout client 60s\n"
ERROR_FILES = "".join(f"    errorfile {status} /x/500.http\n" for status in (502, 503, 504))
NO_BACKEND = (
    "backend default_backend\n"
    "    http-request return status 404 content-type text/plain lf-string \"Path '%[path]'\"\n"
    "backend http-tiny\n    http-request return status 404\n"
)
FRONTEND = "frontend http_frontend\n    bind :8000\n"
SERVE_S = f"global\n    maxconn 16384\n{DEFAULTS}{ERROR_FILES}{FRONTEND}{NO_BACKEND}"


def test_serve_writes_the_lines_that_are_patched() -> None:
    written = TEMPLATES["HAPROXY_CONFIG_TEMPLATE"]

    assert "    maxconn {{ config.maxconn }}\n" in written
    assert "defaults\n    mode http\n" in written
    assert "    errorfile 503 {{ config.error_file_path }}\n" in written
    assert (
        "backend default_backend\n    http-request return status 404 content-type text/plain "
    ) in written
    assert "frontend http_frontend\n" in written


def test_a_patched_configuration_is_patched_once() -> None:
    once = haproxy.patched(SERVE_S, folder=Path("/pages"), max_files=100_000)

    assert haproxy.patched(once, folder=Path("/pages"), max_files=100_000) == once
    assert once.count("    errorfile 503 /pages/tandem-503.http\n") == 1
    assert once.count("return status 503 errorfile /pages/tandem-503.http\n") == 1
    assert "/x/500.http" not in once
    assert once.count("return status 404") == 1
    assert once.count("timeout http-request ") == 1
    assert once.count("del-header x-request-id") == 1
    assert once.count("del-header upgrade") == 1
    assert once.count("return status 405 errorfile /pages/tandem-405.http ") == 1


@pytest.mark.parametrize(("max_files", "maxconn"), [(1_048_576, 16384), (20_000, 7795), (100, 1)])
def test_there_are_no_more_connections_than_files(max_files: int, maxconn: int) -> None:
    assert f"maxconn {maxconn}\n" in haproxy.limit_connections(SERVE_S, max_files=max_files)


def test_each_page_is_a_whole_answer_in_openai_s_form() -> None:
    for page in haproxy.error_pages().values():
        head, _, body = page.partition("\r\n\r\n")
        error = json.loads(body)["error"]

        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"].endswith(".")
        assert f"Content-Length: {len(body)}" in head.split("\r\n")
        assert ("Retry-After: " in head) is head.startswith("HTTP/1.1 503 ")


FALLBACK = "    server SERVE_PROXY 127.0.0.1:8500 check backup\n"
REPLICA = "    server SERVE_REPLICA 10.0.0.1:30000 check\n"
ROUTED = """\
frontend http_frontend
    acl healthcheck path -i /-/healthz
    # Static routing based on path prefixes in decreasing length
    default_backend default_backend
backend http-tiny
    default-server fastinter 250ms
{servers}listen stats
"""


def at_zero(text: str) -> str:
    return haproxy.answer_at_zero(text, folder=Path("/pages"))


@pytest.mark.parametrize(
    ("servers", "is_answered"),
    [("", True), (FALLBACK, True), (REPLICA, False), (REPLICA + FALLBACK, False)],
)
def test_a_proxy_without_replicas_lets_no_request_wait(servers: str, *, is_answered: bool) -> None:
    text = ROUTED.format(servers=servers)

    found = at_zero(text)

    assert (found != text) is is_answered
    if is_answered:
        posts, lists, others = (line for line in found.splitlines() if "use_backend" in line)
        assert posts.endswith("use_backend tandem_demand if METH_POST { path_beg /v1/ }")
        assert lists.endswith("use_backend tandem_demand if METH_GET { path /v1/models }")
        assert others.endswith("use_backend tandem_at_zero")
        assert found.count("errorfile /pages/tandem-at-zero.http") == 2


def test_a_head_that_is_drained_says_so_without_replicas_too() -> None:
    drained = configuration(DRAINING, backends=0)

    assert "200" not in at_zero(drained)
    assert "return status 200" in at_zero(configuration(SERVING, backends=0))
