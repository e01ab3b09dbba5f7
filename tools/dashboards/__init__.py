"""Grafana's dashboards as code: services, engines and the operator.

`python -m tools.dashboards` writes them as JSON, `python -m tools.dashboards draw` draws their
panels from a Prometheus.
"""
