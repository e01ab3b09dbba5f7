"""Work that is put off: never beside a step, a little between steps, all of it when it is quiet."""

import threading
from itertools import count, pairwise

import pytest

from tandem_engine.device.cpu.idle_work import SHARE, IdleWork

STEP_S, PIECE_S = 0.040, 0.001


class Work:
    """So many pieces, each of which takes a while by the clock that it moves."""

    def __init__(self, num_pieces: int, piece_s: float = PIECE_S) -> None:
        self.now = 0.0
        self.left = num_pieces
        self.done = 0
        self._piece_s = piece_s

    def clock(self) -> float:
        return self.now

    def piece(self) -> bool:
        if not self.left:
            return False
        self.now += self._piece_s
        self.left -= 1
        self.done += 1
        return True


def begun(work: Work) -> IdleWork:
    """Begun, but for the thread: the test says when it is quiet."""
    idle_work = IdleWork(work.piece, clock=work.clock)
    idle_work._is_over = False
    return idle_work


def run_step(idle_work: IdleWork, work: Work) -> None:
    with idle_work.step():
        before = work.done
        work.now += STEP_S
        assert not idle_work.run_if_idle()
        assert work.done == before


def test_nothing_is_done_before_it_is_begun() -> None:
    work = Work(3)
    idle_work = IdleWork(work.piece, clock=work.clock)

    run_step(idle_work, work)

    assert idle_work.is_over
    assert work.done == 0


def test_steps_without_end_give_up_their_share_and_no_more() -> None:
    work = Work(10_000)
    idle_work = begun(work)

    for _ in range(1000):
        run_step(idle_work, work)

    spent_s, stepped_s = work.done * PIECE_S, 1000 * STEP_S
    assert SHARE * stepped_s <= spent_s <= SHARE * stepped_s + PIECE_S


def test_a_piece_that_takes_long_is_paid_by_the_steps_after_it() -> None:
    work = Work(10_000, piece_s=9.5 * SHARE * STEP_S)
    idle_work = begun(work)
    done = [0]

    for _ in range(95):
        run_step(idle_work, work)
        done.append(work.done)

    assert work.done in (10, 11)
    assert done[1] == done[9] == 1
    assert max(after - before for before, after in pairwise(done)) == 1


def test_pieces_are_done_one_after_the_other_once_it_is_quiet() -> None:
    work = Work(3)
    idle_work = begun(work)
    run_step(idle_work, work)
    after_step = work.done

    assert not idle_work.run_if_idle()  # the next step may follow at once
    assert work.done == after_step
    work.now += 1.0
    while idle_work.run_if_idle():
        pass

    assert work.done == 3
    assert idle_work.is_over


def test_a_step_that_fails_lets_pieces_go_on() -> None:
    work = Work(1)
    idle_work = begun(work)

    with pytest.raises(ZeroDivisionError), idle_work.step():
        work.now /= 0
    work.now += 1.0

    assert idle_work.run_if_idle()


def test_the_thread_ends_with_the_last_piece() -> None:
    work = Work(50)
    hours = count()
    idle_work = IdleWork(work.piece, clock=lambda: next(hours) * 3600.0)  # it is always quiet

    idle_work.begin()
    for thread in threading.enumerate():
        if thread.name == "tandem-idle-work":
            thread.join()

    assert work.done == 50
    assert idle_work.is_over
