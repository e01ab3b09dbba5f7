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
    head = parameters.head.finished()
    return PackedModel(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        dtype=parameters.dtype,
        eps=config.rms_norm_eps,
        rope=rope.table,
        embedding=head if parameters.embedding is None else parameters.embedding,
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
