"""Entry point of `python -m tools.steadiness`."""

from tools.steadiness.cli import main

main()
