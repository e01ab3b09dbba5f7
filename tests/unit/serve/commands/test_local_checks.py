"""Checks before Ray starts: a service that cannot run here is refused in one sentence."""

import pytest

from tandem_serve.commands import local_checks
from tandem_serve.errors import ServeError


@pytest.mark.parametrize("package", ["ray", "torch"])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        local_checks, "find_spec", lambda name: None if name == package else object()
    )

    with pytest.raises(ServeError, match=rf"needs the package {package}, .*serve,engine"):
        local_checks.check_packages()


def test_with_both_extras_nothing_is_refused() -> None:
    local_checks.check_packages()
