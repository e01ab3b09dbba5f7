"""`quant_model_description*.json` of msModelSlim, whose checkpoints MindIE and vLLM-Ascend read.

The file names the kind of every tensor. A layer of kind W8A8_DYNAMIC has

    weight [out, in] int8, weight_scale [out, 1], weight_offset [out, 1]: weight ≈ weight_scale * q

and one of kind W8A8 (activations by a scale for the whole tensor)

    weight [out, in] int8, input_scale [1], input_offset [1], deq_scale [out], quant_bias [out]
    x_q = clamp(round(x / input_scale + input_offset), -128, 127)
    y   = (Σ x_q * q + quant_bias) * deq_scale

where deq_scale is float32 or, in checkpoints made for float16, the bits of a float32 in an int64,
and quant_bias, int32, holds the layer's bias and takes back what input_offset adds to the sum.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tandem_engine.api.errors import CheckpointError
from tandem_engine.quantization.scheme import Format, LinearKind, Scheme

PATTERN: Final = "quant_model_description*.json"
DESCRIPTION_FILE: Final = "quant_model_description.json"

_SUPPORTED: Final = ", ".join(LinearKind)
# Set where caches, attention, communication or rotations are quantised or changed as well.
_MUST_BE_EMPTY: Final = (
    "kv_cache_type",
    "kv_quant_type",
    "fa_quant_type",
    "reduce_quant_type",
    "is_rot_used",
    "group_size",
)


def read_modelslim(path: Path, document: Mapping[str, Any]) -> Scheme:
    """Parse a description.

    Args:
        path: The file, for errors.
        document: Its content.

    Raises:
        CheckpointError: It names a kind, or a kind of cache or attention, that is not computed.
    """
    for field in _MUST_BE_EMPTY:
        if document.get(field) not in (None, "", 0, False, "FLOAT"):
            raise CheckpointError(
                f"{path}: {field} is {json.dumps(document[field])}, which is not computed; "
                f"supported are linear layers of the kinds {_SUPPORTED} and nothing else"
            )
    # A dot tells tensors from the fields that are about the whole model.
    kinds = {name: kind for name, kind in document.items() if "." in name}
    for name, kind in kinds.items():
        if kind not in list(LinearKind):
            raise CheckpointError(
                f"{path}: the tensor {name} is of kind {json.dumps(kind)}; "
                f"supported are {_SUPPORTED}"
            )

    def kind_of(name: str) -> LinearKind:
        tensor = f"{name}.weight"
        if tensor not in kinds:
            raise CheckpointError(f"{path} does not name the kind of the tensor {tensor}")
        return LinearKind(kinds[tensor])

    return Scheme(Format.MODELSLIM, kind_of)


def modelslim_description(kinds: Mapping[str, LinearKind]) -> dict[str, Any]:
    """The description of a checkpoint.

    Args:
        kinds: The kind of each tensor.
    """
    return {
        "version": "1.0.0",
        "model_quant_type": str(LinearKind.DYNAMIC),
        "group_size": 0,
        **{name: str(kind) for name, kind in kinds.items()},
    }
