"""Sizes that the operators of an NPU take: refused in one sentence before anything starts.

Sources: the pages of npu_fused_infer_attention_score and npu_quant_matmul in Ascend's op-plugin,
for Atlas A2 and A3; docs/guides/npu.md has all rules.
"""

from typing import Final

from tandem_engine.api.errors import ConfigError
from tandem_engine.kvcache.layout import CacheLayout

HEAD_DIM: Final = 128
"""Size of a head in the layout TND."""
BLOCK_SIZES: Final = range(16, 1025, 16)
CACHE_DTYPES: Final = ("bfloat16", "float16")
MOST_INT8_SIZE: Final = 65535
"""Inputs, and outputs, of a layer in 8 bits."""


def check_cache(layout: CacheLayout) -> None:
    """Make sure that attention takes such a cache.

    Raises:
        ConfigError: It does not.
    """
    if layout.head_dim != HEAD_DIM:
        raise ConfigError(
            f"the model's heads have {layout.head_dim} values, and attention on device npu takes "
            f"heads of {HEAD_DIM}; choose a model that has these, or device cpu"
        )
    if layout.dtype not in CACHE_DTYPES:
        raise ConfigError(
            f"the KV cache is {layout.dtype}, and on device npu it can be "
            f"{' or '.join(CACHE_DTYPES)}; set dtype or kvCacheDtype to one of them"
        )
    if layout.block_size not in BLOCK_SIZES:
        raise ConfigError(
            f"cacheBlockSize is {layout.block_size}, and on device npu it is a multiple of 16 up "
            f"to {BLOCK_SIZES[-1]}; 128 is what Ascend's servers take"
        )


def check_int8(outputs: int, inputs: int) -> None:
    """Make sure that a layer can be multiplied in 8 bits.

    Raises:
        ConfigError: It cannot.
    """
    if max(outputs, inputs) > MOST_INT8_SIZE:
        raise ConfigError(
            f"a layer of {outputs} outputs and {inputs} inputs is in 8 bits, and on device npu "
            f"neither may be above {MOST_INT8_SIZE}; leave it in its own type, or raise tp"
        )


def check_mc2(*, is_in_float: bool) -> None:
    """Make sure that a model's layers can be multiplied and added up in one operator.

    Raises:
        ConfigError: Some are in 8 bits.
    """
    if not is_in_float:
        raise ConfigError(
            "ccl.enableMc2 adds up results of layers in float, and layers of this model are in 8 "
            "bits; leave enableMc2 out, or quantization none"
        )
