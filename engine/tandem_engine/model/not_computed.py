"""Fields of config.json that this engine does not compute; they are refused by name."""

import json
from collections.abc import Mapping
from typing import Any, Final

from tandem_engine.documents import Fields

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "hidden_act": ("silu",),
    "partial_rotary_factor": (1,),
    "is_encoder_decoder": (False,),
    # Of attention.
    "attn_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (),
    "clip_qkv": (),
    "alibi": (False,),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "attn_temperature_tuning": (False,),
    "attention_chunk_size": (),
    "no_rope_layers": ([],),
    "use_mrope": (False,),
    # Of what goes into the layers, what they add, and what the head gives.
    "embedding_multiplier": (1,),
    "scale_emb": (1,),
    "residual_multiplier": (1,),
    "scale_depth": (),
    "final_logit_softcapping": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "dim_model_base": (),
    # Of experts.
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "n_routed_experts": (0,),
}
"""Field → the values beside null with which a model computes what it would without the field; its
name is transformers', also of other architectures, from which a model may have been made."""


def refuse_what_is_not_computed(fields: Fields, model_type: str) -> None:
    """Refuse fields that change what a model computes, unless they are neutral.

    Args:
        fields: Of config.json.
        model_type: The one that belongs to the architecture.

    Raises:
        CheckpointError: with the field and its value.
    """
    named = fields.get("model_type")
    # transformers goes by this one, and would compute another model.
    if named not in (None, model_type):
        raise fields.error(
            f"model_type is {json.dumps(named)}, which is not the architecture's, {model_type}"
        )
    for name, neutral in NEUTRAL.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            only = f"; only {json.dumps(neutral[0])} is" if neutral else ""
            raise fields.error(f"{name} is {json.dumps(value)}, which is not computed{only}")
    if _has_window(fields):
        raise fields.error("the model attends in a sliding window, which is not computed")


def _has_window(fields: Fields) -> bool:
    layer_types = fields.get("layer_types")
    if isinstance(layer_types, list):
        return any(kind != "full_attention" for kind in layer_types)
    # The layers before max_window_layers attend to all.
    num_layers = fields.count("num_hidden_layers")
    first = fields.get("max_window_layers")
    is_out_of_reach = isinstance(first, int) and first >= num_layers
    return fields.flag("use_sliding_window") and not is_out_of_reach
