"""`python -m tests.npu.find_graphs`: what the back end calls of the package's graphs."""

import inspect
import json
from typing import Any

import torch
import torch_npu  # type: ignore[import-not-found]  # noqa: F401 - adds torch.npu

CALLS = {"graph": ("npu_graph", "pool"), "graph_pool_handle": ()}


def find() -> dict[str, Any]:
    """Say which names and parameters are missing."""
    card: Any = torch.npu  # type: ignore[attr-defined]
    missing = [name for name in (*CALLS, "NPUGraph") if not hasattr(card, name)]
    for name, parameters in CALLS.items():
        known = inspect.signature(getattr(card, name)).parameters
        missing += [f"{name}({each})" for each in parameters if each not in known]
    if not hasattr(card.NPUGraph, "replay"):
        missing.append("NPUGraph.replay")
    return {"missing": missing}


if __name__ == "__main__":
    print(json.dumps(find()))  # noqa: T201
