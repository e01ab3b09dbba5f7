"""python -m tools.dashboards: write the dashboards, or draw them from a Prometheus."""

from tools.dashboards.cli import main

main()
