"""Requests of every kind to a real server: no 5xx, every refusal in OpenAI's form, no growth."""

import json
from collections import Counter
from http.client import HTTPConnection

import pytest
from hypothesis import HealthCheck, given, settings

from tests.figures import Figures
from tests.integration.hostile.conftest import Server
from tests.integration.hostile.requests import Request, requests

SAMPLES, ALL = 200, 5000
WARM_UP = 0.3
"""Share of the requests after which caches have filled."""
GROWTH_BYTES = 32 * 2**20
SERVER_ERRORS = 500
SECTION = "fuzzing of the HTTP interface"


class Fuzz:
    """Sends requests to one server, one after the other, and counts what came back."""

    def __init__(self, server: Server, count: int) -> None:
        self._server = server
        self._warm_after = int(WARM_UP * count)
        self.statuses: Counter[int] = Counter()
        self.memory_when_warm = 0

    def send(self, request: Request) -> None:
        """Send one, and check the answer."""
        connection = HTTPConnection("127.0.0.1", self._server.port)
        try:
            connection.request(request.method, request.path, request.body, request.headers)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        self.statuses[answer.status] += 1
        if self.statuses.total() == self._warm_after:
            self.memory_when_warm = self._server.memory()
        assert answer.status < SERVER_ERRORS, body
        if answer.status >= 400:
            error = json.loads(body)["error"]
            assert error["message"].endswith((".", "?")), error
            assert error.keys() == {"message", "type", "param", "code"}
        elif answer.getheader("content-type", "").startswith("text/event-stream"):
            assert body.endswith(b"data: [DONE]\n\n"), body
        else:
            json.loads(body)


@pytest.mark.parametrize("count", [SAMPLES, pytest.param(ALL, marks=pytest.mark.slow)], ids=str)
def test_nothing_that_is_sent_is_the_servers_fault(
    server: Server, count: int, request: pytest.FixtureRequest
) -> None:
    fuzz = Fuzz(server, count)

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests())
    def send(sent: Request) -> None:
        fuzz.send(sent)

    send()

    grown = server.memory() - fuzz.memory_when_warm
    told = ", ".join(f"{number} × {status}" for status, number in sorted(fuzz.statuses.items()))
    Figures.of(request.config).say(
        SECTION, f"{fuzz.statuses.total()} requests: {told}; memory {grown / 2**20:+.1f} MiB"
    )
    assert fuzz.statuses[200] > count / 20, "some are sound"
    assert grown < GROWTH_BYTES
