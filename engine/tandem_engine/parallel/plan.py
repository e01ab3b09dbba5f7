"""The plan of a replica of several ranks: which rank holds which slice of which tensor.

    tp   tensor parallel: ranks that share each layer, by heads and by width (Shoeybi et al.,
         "Megatron-LM", 2019)
    pp   pipeline parallel: stages, each with some of the layers
    dp   data parallel: groups of tp · pp ranks with all layers each, for different rows
    sp   sequence parallel: in prefill, the ranks of tp share the rows between layers' matrices
         (Korthikanti et al., "Reducing Activation Recomputation", 2022)

Ranks are numbered as MindIE and Megatron do, tp innermost:

    rank = (dp_rank · pp + pp_rank) · tp + tp_rank

Of each layer a rank of tp holds (columns are inputs, rows are outputs)

    Q, K, V     rows of its heads; each KV head on tp / kv_heads ranks where tp exceeds them
    output      the columns that belong to its heads' rows
    gate, up    its share of the intermediate rows
    down        the same columns
    embedding, head   its share of the vocabulary's rows

so the products of output and down are sums that the ranks add up. Norms are on all ranks.
"""

from dataclasses import dataclass
from typing import Protocol, Self

from tandem_engine.api.config import ParallelismConfig
from tandem_engine.api.errors import ConfigError


class ModelSizes(Protocol):
    """The sizes of a model that a plan cuts; `model.config.DecoderConfig` has them."""

    @property
    def num_layers(self) -> int:
        """Layers."""

    @property
    def num_heads(self) -> int:
        """Query heads."""

    @property
    def num_kv_heads(self) -> int:
        """Heads of K and V."""

    @property
    def head_dim(self) -> int:
        """Values of a head."""

    @property
    def intermediate_size(self) -> int:
        """Width of the feed-forward layer."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelShape:
    """The degrees of parallelism of a replica (MindIE tp, dp, sp; vLLM pipeline_parallel_size)."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    sp: bool = False

    @classmethod
    def of(cls, parallelism: ParallelismConfig) -> Self:
        """The degrees that settings ask for."""
        return cls(
            tp=parallelism.num_tp, pp=parallelism.pp, dp=parallelism.num_dp, sp=parallelism.sp
        )

    @property
    def world_size(self) -> int:
        """Ranks of the replica."""
        return self.tp * self.pp * self.dp

    def check(self, world_size: int | None = None) -> None:
        """Make sure that the degrees go together.

        Args:
            world_size: Ranks that there are to be (MindIE worldSize); None: as many as follow.

        Raises:
            ConfigError: They do not; the text says which would do.
        """
        for name, degree in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp)):
            if degree < 1:
                raise ConfigError(f"parallelism.{name} is {degree}; it must be 1 or more.")
        if world_size is not None and world_size != self.world_size:
            raise ConfigError(
                f"parallelism.worldSize is {world_size}, but tp {self.tp} · pp {self.pp} · "
                f"dp {self.dp} are {self.world_size} ranks; set worldSize to {self.world_size}, "
                "or change a degree."
            )
        if self.sp and self.tp == 1:
            raise ConfigError(
                "parallelism.sp is true, but tp is 1: the ranks of tp share the rows; "
                "set tp to 2 or more, or sp to false."
            )

    def check_model(self, model: ModelSizes) -> None:
        """Make sure that a model can be cut into these ranks.

        Raises:
            ConfigError: It cannot; the text says which degrees would do.
        """
        if self.pp > model.num_layers:
            raise ConfigError(
                f"parallelism.pp is {self.pp}, but the model has {model.num_layers} layers; "
                f"set pp to {model.num_layers} or less."
            )
        if reason := _tp_problem(model, self.tp):
            fitting = ", ".join(map(str, tp_degrees(model)))
            raise ConfigError(
                f"parallelism.tp is {self.tp}, but {reason}; this model can be cut into "
                f"tp {fitting}."
            )

    def rank_of(self, *, tp_rank: int, pp_rank: int = 0, dp_rank: int = 0) -> int:
        """The number of a rank."""
        return (dp_rank * self.pp + pp_rank) * self.tp + tp_rank

    def tp_group(self, rank: int) -> range:
        """The ranks that share the layers of `rank`."""
        first = rank - rank % self.tp
        return range(first, first + self.tp)

    def pp_group(self, rank: int) -> range:
        """The ranks that hidden states pass on their way through `rank`, first stage first."""
        width = self.tp * self.pp
        first = rank - rank % width + rank % self.tp
        return range(first, first + width, self.tp)

    def dp_group(self, rank: int) -> range:
        """The ranks that hold what `rank` holds."""
        width = self.tp * self.pp
        return range(rank % width, self.world_size, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """The part of a model that one rank holds. Ranges count in the whole model."""

    shape: ParallelShape
    rank: int
    tp_rank: int
    pp_rank: int
    dp_rank: int
    layers: range
    """Of its stage."""
    heads: range
    """Query heads."""
    kv_heads: range
    """Heads of K and V; others may hold them, too."""
    query_rows: range
    """Rows of Q's projection, and columns of the output projection."""
    kv_rows: range
    """Rows of K's projection, and of V's."""
    intermediate: range
    """Rows of the gate and up projections, and columns of down."""
    vocab: range
    """Rows of the embedding and of the head."""
    vocab_width: int
    """Columns of logits that each rank computes, so that all are alike: at least len(vocab)."""

    @property
    def is_first_stage(self) -> bool:
        """True if it embeds tokens."""
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """True if it computes logits."""
        return self.pp_rank == self.shape.pp - 1

    @property
    def adds_bias(self) -> bool:
        """True for the one rank of tp that adds the bias of sums: the others would add it again."""
        return self.tp_rank == 0

    @property
    def num_tp(self) -> int:
        """Ranks that share each layer."""
        return self.shape.tp


def plan_rank(shape: ParallelShape, model: ModelSizes, rank: int) -> RankPlan:
    """The part of `model` that `rank` holds.

    Raises:
        ConfigError: The model cannot be cut so; see `ParallelShape.check_model`.
    """
    shape.check()
    shape.check_model(model)
    if not 0 <= rank < shape.world_size:
        raise ConfigError(f"rank {rank} is not one of 0 to {shape.world_size - 1}.")
    tp_rank, stage = rank % shape.tp, rank // shape.tp
    heads = _share(model.num_heads, shape.tp, tp_rank)
    kv_heads = _kv_heads(model, shape.tp, tp_rank)
    width = -(-model.vocab_size // shape.tp)
    return RankPlan(
        shape=shape,
        rank=rank,
        tp_rank=tp_rank,
        pp_rank=stage % shape.pp,
        dp_rank=stage // shape.pp,
        layers=stage_layers(model.num_layers, shape.pp)[stage % shape.pp],
        heads=heads,
        kv_heads=kv_heads,
        query_rows=_scaled(heads, model.head_dim),
        kv_rows=_scaled(kv_heads, model.head_dim),
        intermediate=_share(model.intermediate_size, shape.tp, tp_rank),
        vocab=range(tp_rank * width, min((tp_rank + 1) * width, model.vocab_size)),
        vocab_width=width,
    )


def whole_plan(model: ModelSizes) -> RankPlan:
    """The plan of a replica of one rank, which holds all of the model."""
    return plan_rank(ParallelShape(), model, 0)


def stage_layers(num_layers: int, pp: int) -> list[range]:
    """The layers of each stage, as even as they go.

    Layers that are left over go to the inner stages first, then to the first one, and never to the
    last: it has the head besides.
    """
    extra = set([*range(1, pp - 1), 0][: num_layers % pp])
    counts = [num_layers // pp + (stage in extra) for stage in range(pp)]
    return [range(sum(counts[:stage]), sum(counts[: stage + 1])) for stage in range(pp)]


def tp_degrees(model: ModelSizes) -> list[int]:
    """The degrees of tp that a model can be cut into."""
    return [tp for tp in range(1, model.num_heads + 1) if _tp_problem(model, tp) is None]


def _tp_problem(model: ModelSizes, tp: int) -> str | None:
    """Reason why the layers cannot be cut into so many; None: they can."""
    heads, kv_heads = model.num_heads, model.num_kv_heads
    if heads % tp:
        return f"the model's {heads} attention heads cannot be shared by {tp} ranks evenly"
    if kv_heads % tp and tp % kv_heads:
        return (
            f"the model's {kv_heads} key-value heads can neither be shared by {tp} ranks evenly "
            "nor be given to as many ranks each"
        )
    if model.intermediate_size % tp:
        return (
            f"the model's intermediate_size {model.intermediate_size} cannot be shared by {tp} "
            "ranks evenly"
        )
    if -(-model.vocab_size // tp) * (tp - 1) >= model.vocab_size:
        return f"the model's {model.vocab_size} tokens are too few for {tp} ranks"
    return None


def _kv_heads(model: ModelSizes, tp: int, tp_rank: int) -> range:
    if tp <= model.num_kv_heads:
        return _share(model.num_kv_heads, tp, tp_rank)
    head = tp_rank * model.num_kv_heads // tp
    return range(head, head + 1)


def _share(count: int, ranks: int, rank: int) -> range:
    return range(count // ranks * rank, count // ranks * (rank + 1))


def _scaled(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)
