"""The cases: prompts, and a rate of the link; what they take, and which fit a time. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import fsum, sqrt
from typing import Final, NamedTuple

from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.runner.micro_batch_control import EVERY_STEP

HIDDEN: Final = 4096
MLP: Final = 11008
NUM_HEADS: Final = 32
HEAD_DIM: Final = 128
VOCAB: Final = 2048
RANKS: Final = 2
_SUMMED_BYTES: Final = 4
"""Of a value in a sum: gloo has bfloat16 added up as float32."""
TOKENS: Final = (512, 2048, 8192)
SHARES: Final = (0.25, 0.5, 1.0, 1.5)
NUM_PROMPTS: Final = (1, 16)
_WARM_UP_STEPS: Final = 3
_BY_USE: Final = (1.0, 0.5, 1.5, 0.25)
"""Shares by how much they tell; others come behind them."""


_HEADS: Final = NUM_HEADS * HEAD_DIM
_QKV: Final = 2.0 * 3 * HIDDEN * _HEADS
"""Operations for a token, as the next two."""
_OUT: Final = 2.0 * HIDDEN * _HEADS
_MLP: Final = 2.0 * 3 * HIDDEN * MLP
_TOKEN_OPERATIONS: Final = _QKV + _OUT + _MLP
_PAIR_OPERATIONS: Final = 4.0 * _HEADS
"""Of attention, for two tokens."""


class Part(NamedTuple):
    """Tokens that are computed together in each layer."""

    num_tokens: float
    pairs: float
    """Of tokens that attend to each other."""

    def stages(self, num_layers: int) -> tuple[float, ...]:
        """Operations of one rank in front of each sum, and behind the last one.

        Of its share of the matrices, and of attention.
        """
        qkv = _QKV * self.num_tokens + _PAIR_OPERATIONS * self.pairs
        out, mlp = _OUT * self.num_tokens, _MLP * self.num_tokens
        # As with sums: the last layer has keys, values and attention of all tokens, and no more.
        layers = (qkv + out, mlp) * (num_layers - 1)
        return tuple(stage / RANKS for stage in (0.0, *layers, qkv))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one step."""

    num_tokens: int
    num_prompts: int
    """Into which the tokens are divided."""
    num_layers: int

    @property
    def prompts(self) -> tuple[int, ...]:
        """Tokens of each prompt."""
        each, left = divmod(self.num_tokens, self.num_prompts)
        return tuple(each + (number < left) for number in range(self.num_prompts))

    @property
    def in_words(self) -> str:
        """For the progress."""
        prompts = "one prompt" if self.num_prompts == 1 else f"{self.num_prompts} prompts"
        return f"{self.num_tokens:,} tokens, {prompts}"

    @property
    def in_many_prompts(self) -> "Work":
        """As many tokens in prompts whose attention takes next to nothing beside that of one."""
        return replace(self, num_prompts=max(NUM_PROMPTS))

    @property
    def num_sums(self) -> int:
        """Sums of a whole step that have all tokens: one of the embedding, and two a layer.

        The last layer goes on with the rows that yield logits: its sums are of no account.
        """
        return 2 * self.num_layers - 1

    @property
    def link_bytes(self) -> int:
        """Bytes that each rank sends for a whole step."""
        return self.num_sums * self.num_tokens * HIDDEN * _SUMMED_BYTES

    @property
    def whole(self) -> Part:
        """All of it."""
        pairs = fsum(length * (length + 1) / 2 for length in self.prompts)
        return Part(self.num_tokens, pairs)

    @property
    def halves(self) -> tuple[Part, Part]:
        """Two parts with equal numbers of operations: of one prompt, begin and end."""
        whole = self.whole
        if self.num_prompts > 1:
            half = Part(whole.num_tokens / 2, whole.pairs / 2)
            return half, half
        token, pair = _TOKEN_OPERATIONS, _PAIR_OPERATIONS
        operations = token * whole.num_tokens + pair * whole.pairs
        first = (sqrt(token**2 + pair * operations) - token) / pair
        begin = Part(first, first**2 / 2)
        return begin, Part(whole.num_tokens - begin.num_tokens, whole.pairs - begin.pairs)

    @property
    def operations(self) -> float:
        """Operations of one rank."""
        return fsum(self.whole.stages(self.num_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step and a rate of the link."""

    work: Work
    share: float | None
    """Communication as a share of computation; None: the link is what it is."""
    repeats: int

    @property
    def name(self) -> str:
        """For the progress."""
        link = "loopback" if self.share is None else f"{self.share:.0%}"
        return f"{self.work.in_words}, {link}"

    def seconds(self, compute_s: float) -> float:
        """Return the seconds of the case, where a step computes for so long."""
        share = 0.1 if self.share is None else self.share
        whole, halves = 1.0 + share, max(1.0, share) + 0.05
        return compute_s * self.repeats * (whole + halves)


def layers_for(num_tokens: int) -> int:
    """Layers that a step of so many tokens has when none are asked for.

    The more there are, the less the last collective weighs, which has nothing beside it; but each
    costs time, 5 ms a token on a core with AVX2.
    """
    if num_tokens <= 512:  # noqa: PLR2004
        return 12
    return 8 if num_tokens <= 2048 else 4  # noqa: PLR2004


def repeats_for(num_tokens: int) -> int:
    """Pairs of steps: long ones are fewer."""
    return 2 if num_tokens <= 512 else 1  # noqa: PLR2004


def grid(
    *,
    tokens: Sequence[int],
    shares: Sequence[float | None],
    prompts: Sequence[int],
    num_layers: int | None,
    repeats: int | None,
    only: Sequence[str] = (),
) -> list[Case]:
    """All cases, those that tell most first; of them those with a part of `only` in their names."""
    cases = [
        Case(
            work=Work(
                num_tokens=num_tokens,
                num_prompts=num_prompts,
                num_layers=num_layers or layers_for(num_tokens),
            ),
            share=share,
            repeats=repeats or repeats_for(num_tokens),
        )
        for share, num_tokens, num_prompts in product(shares, tokens, prompts)
    ]
    named = [case for case in cases if not only or any(part in case.name for part in only)]
    return sorted(named, key=_use)


def _use(case: Case) -> int:
    return _BY_USE.index(case.share) if case.share in _BY_USE else len(_BY_USE)


def fitting(
    cases: Sequence[Case], compute_s: dict[Work, float], budget_s: float
) -> tuple[list[Case], list[Case]]:
    """Cases that fit the time together, from the first on, and those that are left out.

    Args:
        cases: The most telling ones first.
        compute_s: Seconds that a step of each takes to compute.
        budget_s: The time.
    """
    taken: list[Case] = []
    left_out: list[Case] = []
    for case in cases:
        is_taken = seconds_of([*taken, case], compute_s) <= budget_s
        (taken if is_taken else left_out).append(case)
    taken.sort(key=lambda case: (case.work.num_layers, case.work.num_tokens, case.work.num_prompts))
    return taken, left_out


def seconds_of(cases: Sequence[Case], compute_s: dict[Work, float]) -> float:
    """Return what cases take together, the steps that warm each work up included."""
    warm_up_s = fsum(_WARM_UP_STEPS * compute_s[work] for work in {case.work for case in cases})
    return warm_up_s + fsum(case.seconds(compute_s[case.work]) for case in cases)


def reachable_overlap(halves: Sequence[Part], num_layers: int, share: float) -> float:
    """Return the overlap of two halves that take turns, were nothing lost on the way.

    A half computes a stage when the other has computed its own, and when its last sum is there;
    it communicates when the other has. Its sums all take as long, and its stages do not: where a
    sum takes longer than the shorter stage and not as long as the longer one, either side waits
    for the other by turns.

    Args:
        halves: The first one first.
        num_layers: Layers of both.
        share: Communication over computation.
    """
    stages = [half.stages(num_layers) for half in halves]
    num_sums, compute_s = len(stages[0]) - 1, fsum(map(fsum, stages))
    sum_s_of_token = share * compute_s / num_sums / fsum(half.num_tokens for half in halves)
    computed_s = communicated_s = 0.0
    summed_s = [0.0, 0.0]
    for number, in_turn in enumerate(zip(*stages, strict=True)):
        for half, stage_s in enumerate(in_turn):
            computed_s = max(computed_s, summed_s[half]) + stage_s
            if number < num_sums:
                sum_s = sum_s_of_token * halves[half].num_tokens
                summed_s[half] = communicated_s = max(communicated_s, computed_s) + sum_s
    exposed_s = computed_s - compute_s
    return (share * compute_s - exposed_s) / (min(1.0, share) * compute_s)


def cut_by(work: Work, *, compute_s: float, in_many_s: float | None) -> CutPrices:
    """Return the prices of a step's tokens and pairs of them, by which it is cut whatever it gains.

    As an engine learns them: what longer prompts take in addition is attention's.

    Args:
        work: The step.
        compute_s: Seconds that it computes.
        in_many_s: The same of `in_many_prompts`; None: it is not known, and operations decide.
    """
    token_s, pair_s = _TOKEN_OPERATIONS, _PAIR_OPERATIONS
    if in_many_s is not None:
        pairs = work.whole.pairs - work.in_many_prompts.whole.pairs
        pair_s = max(0.0, compute_s - in_many_s) / pairs
        token_s = (compute_s - pair_s * work.whole.pairs) / work.num_tokens
    return replace(EVERY_STEP, token_s=token_s, pair_s=pair_s)


def rate_for(work: Work, seconds: float) -> float:
    """Bits a second at which a step's communication takes so long, were there nothing beside."""
    return 8.0 * work.link_bytes / seconds
