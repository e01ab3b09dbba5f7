"""From parameters as a checkpoint has them to a network as a device's kernels want it."""

from torch import Tensor

from tandem_engine.device.network import Network, NetworkLayer, PackedLinear
from tandem_engine.device.runtime import Kernels
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.parameters import AnyLinear, Layer, Linear, Parameters
from tandem_engine.model.rope import RopeTable


def pack_network(
    config: DecoderConfig, parameters: Parameters, rope: RopeTable, kernels: Kernels
) -> Network:
    """Pack all linear layers. Weights of which the kernels made a copy of their own are emptied.

    That happens one by one, so that there is never more than one of them twice.

    Raises:
        CheckpointError: A layer in 8 bits has scales or offsets that are not computed.
    """
    layers = tuple(_pack_layer(layer, kernels) for layer in parameters.layers)
    is_tied = parameters.head is None
    head = _pack(parameters.head or _tied_head(parameters.embedding), kernels)
    return Network(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        eps=config.rms_norm_eps,
        rope=rope.table,
        embedding=head if is_tied else parameters.embedding,
        layers=layers,
        norm=parameters.norm,
        head=head,
    )


def _pack_layer(layer: Layer, kernels: Kernels) -> NetworkLayer:
    return NetworkLayer(
        attention_norm=layer.attention_norm,
        qkv=_pack(layer.qkv, kernels),
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        output=_pack(layer.output, kernels),
        mlp_norm=layer.mlp_norm,
        gate_up=_pack(layer.gate_up, kernels),
        down=_pack(layer.down, kernels),
    )


def _tied_head(embedding: Tensor) -> Linear:
    return Linear((), (), embedding, None)


def _pack(linear: AnyLinear, kernels: Kernels) -> PackedLinear:
    if isinstance(linear, Linear):
        weight = linear.weight
        packed = kernels.pack(weight, linear.bias)
    else:
        weight = linear.values
        packed = kernels.pack_int8(linear.finished())
    if not packed.keeps_weight:
        _empty(weight)
    return packed


def _empty(weight: Tensor) -> None:
    """Give its memory back at once, whoever still holds the tensor."""
    weight.untyped_storage().resize_(0)
