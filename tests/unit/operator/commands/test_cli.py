"""The commands' names and help, which must be there at once and without the operator's extra."""

import subprocess
import sys

import pytest

HEAVY = ("kubernetes", "kopf", "aiohttp", "ray", "torch")


def run(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def test_help_loads_no_library_of_kubernetes() -> None:
    code = (
        "import sys, tandem_serve.cli\n"
        "try: tandem_serve.cli.main()\n"
        "except SystemExit: pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )

    said = run(code, "--help").stdout

    assert "explain" in said
    assert said.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments",
    [("get",), ("explain", "tiny"), ("replay", "tiny"), ("export", "keda", "tiny")],
)
def test_without_the_operators_extra_a_command_says_how_to_install_it(
    arguments: tuple[str, ...],
) -> None:
    # None in sys.modules is what Python takes for a module that is not there.
    code = (
        "import sys\n"
        "sys.modules['kubernetes'] = None\n"
        "import tandem_serve.cli\n"
        "tandem_serve.cli.main()"
    )

    done = run(code, *arguments)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "in Tandem's checkout run: pip install '.[operator]'" in done.stderr


@pytest.mark.parametrize("command", ["get", "explain", "replay", "export keda"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    code = "import tandem_serve.cli\ntandem_serve.cli.main()"

    said = run(code, *command.split(), "--help").stdout

    assert "Examples" in said
    assert f"tandem {command}" in said
