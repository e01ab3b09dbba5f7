"""`python -m tests.npu.meta_calls`: every call of the back end past torch_npu's own meta kernels.

Prints one line of JSON: the schemas of the operators, how many calls each took, and what a step
costs (`step_costs`).
"""

import importlib
import json
from collections import Counter
from typing import Final

import torch

from tests.npu.called import Called
from tests.npu.meta_model import LINEARS, Sizes, compute, decoder_of, floats
from tests.npu.schemas import SCHEMAS
from tests.npu.step_costs import step_costs

ROWS: Final = (1, 16, 256)

MODELS: Final = {
    "Qwen3-0.6B": Sizes(1024, 16, 8, 3072, 151936),
    "Qwen3-14B": Sizes(5120, 40, 8, 17408, 151936),
    "Llama-3.1-70B at tp 8": Sizes(8192, 64, 8, 28672, 128256, "LlamaForCausalLM", tp=8),
    "Qwen2.5-7B": Sizes(3584, 28, 4, 18944, 152064, "Qwen2ForCausalLM"),
}


def main() -> None:
    """Call all, on tensors that have shapes and no memory."""
    importlib.import_module("torch_npu")
    schemas = {name: str(getattr(torch.ops.npu, name).default._schema) for name in SCHEMAS}
    with Called() as called:
        for sizes in MODELS.values():
            for linear in LINEARS.values():
                for rows in ROWS:
                    decodes = max(1, rows // 2)
                    compute(
                        decoder_of(sizes, linear),
                        decodes=decodes,
                        chunk=rows - decodes,
                        context=300 + rows,
                        enable_mc2=sizes.tp > 1 and linear is floats and rows > decodes,
                    )
    print(json.dumps({"schemas": schemas, "calls": Counter(called.names), "costs": step_costs()}))  # noqa: T201


if __name__ == "__main__":
    main()
