"""A timeline for tests that can be worked out on paper: two ranks, a whole step and a cut one."""

from typing import Final

from tandem_engine.api.timeline import Half, RankStep, SliceKind, Timeline, TimelineSlice

_MS: Final = 1e-3
_NUM_BYTES: Final = 8192


def _slice(
    kind: SliceKind, name: str, half: int | None, at_ms: float, *, after: tuple[int, ...] = ()
) -> TimelineSlice:
    """A slice of one millisecond."""
    is_stage = kind == "stage"
    return TimelineSlice(
        stream="compute" if is_stage else "communication",
        kind=kind,
        name=name,
        half=half,
        begin_s=at_ms * _MS,
        end_s=(at_ms + 1.0) * _MS,
        num_bytes=0 if is_stage else _NUM_BYTES,
        after=after,
    )


def _whole_step(rank: int, at_ms: float) -> RankStep:
    """Four slices, each after the other: 4 ms, of which 2 ms are communication."""
    return RankStep(
        rank=rank,
        number=0,
        begin_s=at_ms * _MS,
        end_s=(at_ms + 4.0) * _MS,
        num_rows=16,
        num_decode_rows=16,
        num_tokens=16,
        halves=(),
        whole_because="decode_only",
        slices=(
            _slice("stage", "attention 0", None, at_ms),
            _slice("collective", "all_reduce", None, at_ms + 1, after=(0,)),
            _slice("stage", "mlp 0", None, at_ms + 2, after=(1,)),
            _slice("collective", "all_reduce", None, at_ms + 3, after=(2,)),
        ),
    )


def _cut_step(rank: int, at_ms: float) -> RankStep:
    """Eight slices in 5 ms: 4 ms of communication, of which 3 ms are hidden."""
    return RankStep(
        rank=rank,
        number=1,
        begin_s=at_ms * _MS,
        end_s=(at_ms + 5.0) * _MS,
        num_rows=5,
        num_decode_rows=3,
        num_tokens=64,
        halves=(Half(num_rows=4, num_tokens=33), Half(num_rows=1, num_tokens=31)),
        whole_because=None,
        slices=(
            _slice("stage", "attention 0", 0, at_ms),
            _slice("stage", "attention 0", 1, at_ms + 1),
            _slice("collective", "all_reduce", 0, at_ms + 1, after=(0,)),
            _slice("stage", "mlp 0", 0, at_ms + 2, after=(2,)),
            _slice("collective", "all_reduce", 1, at_ms + 2, after=(1,)),
            _slice("stage", "mlp 0", 1, at_ms + 3, after=(4,)),
            _slice("collective", "all_reduce", 0, at_ms + 3, after=(3,)),
            _slice("collective", "all_reduce", 1, at_ms + 4, after=(5,)),
        ),
    )


FAKE_TIMELINE: Final = Timeline(
    steps=(
        _whole_step(0, 1000.0),
        _whole_step(1, 1000.25),
        _cut_step(0, 1005.0),
        _cut_step(1, 1005.25),
    )
)
"""Its overlap is 3 of 4, on both ranks."""
