"""From filled parameters to the model as a device's kernels read it."""

from tandem_engine.device.packed_model import PackedLayer, PackedModel
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.parameters import Layer, Parameters
from tandem_engine.model.rope import RopeTable


def pack_model(config: DecoderConfig, parameters: Parameters, rope: RopeTable) -> PackedModel:
    """Finish the packing of all linear layers.

    Raises:
        CheckpointError: A layer in 8 bits has scales or offsets that are not computed.
    """
    layers = tuple(_finished(layer) for layer in parameters.layers)
    head = None if parameters.head is None else parameters.head.finished()
    plan, embedding = parameters.plan, parameters.embedding
    return PackedModel(
        num_heads=len(plan.heads),
        num_kv_heads=len(plan.kv_heads),
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        intermediate_size=len(plan.intermediate),
        vocab_size=plan.vocab_width,
        vocab=plan.vocab if plan.num_tp > 1 else None,
        dtype=parameters.dtype,
        eps=config.rms_norm_eps,
        rope=rope.table,
        embedding=head if embedding is None and plan.is_first_stage else embedding,
        layers=layers,
        norm=parameters.norm,
        head=head,
    )


def _finished(layer: Layer) -> PackedLayer:
    return PackedLayer(
        attention_norm=layer.attention_norm,
        qkv=layer.qkv.finished(),
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        output=layer.output.finished(),
        mlp_norm=layer.mlp_norm,
        gate_up=layer.gate_up.finished(),
        down=layer.down.finished(),
    )
