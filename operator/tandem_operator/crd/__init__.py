"""The CustomResourceDefinition of InferenceService, made of the pydantic spec; and the way back.

`python -m tandem_operator.crd` writes it to `crds/` and into the chart.
"""
