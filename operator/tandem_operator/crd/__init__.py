"""The CustomResourceDefinition of InferenceService, generated from the pydantic spec; and parsing.

`python -m tandem_operator.crd` writes it to `crds/` and into the chart.
"""
