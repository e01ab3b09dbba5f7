"""Entry point of `python -m tools.suite`."""

from tools.suite.cli import main

main()
