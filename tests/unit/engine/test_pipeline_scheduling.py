"""Steps in flight on several pipeline stages, as the scheduler makes them."""

from tandem_engine.api.step import Step, StepResult
from tandem_engine.testing import CountingRunner
from tests.unit.engine.scheduling import BLOCK_SIZE, Bench, mix, request, standard, tokens


def in_flight(bench: Bench) -> list[Step]:
    return [each.step for each in bench.engine._launched]


def test_decodes_are_shared_out_evenly_over_the_stages() -> None:
    bench = Bench(standard(), *(request(name, 4, 20) for name in "abcdefg"), num_stages=3)
    bench.run(8)

    for _ in range(6):
        step = bench.step().step
        steps = [step, *in_flight(bench)]
        assert sorted(len(each.sequence_ids) for each in steps) == [1, 3, 3]
        assert {name for each in steps for name in each.sequence_ids} == set("abcdefg")

    bench.finish()
    assert bench.said == {name: list(range(20)) for name in "abcdefg"}


def test_each_sequence_has_its_turn_where_there_are_more_than_rows() -> None:
    bench = Bench(
        standard(max_batch_size=6), *(request(name, 4, 60) for name in "abcdef"), num_stages=2
    )
    bench.run(8)
    bench.engine.reconfigure(standard(max_batch_size=2))

    bench.run(12)

    counts = [len(said) for said in bench.said.values()]
    assert len(counts) == 6
    assert max(counts) - min(counts) <= 4


def test_the_next_chunk_of_a_prompt_follows_while_the_last_is_computed() -> None:
    bench = Bench(mix(32), request("long", 128, 2), num_stages=4)

    first = bench.step().step

    assert [each.starts[0] for each in (first, *in_flight(bench))] == [0, 32, 64, 96]
    bench.finish()
    assert bench.said == {"long": [0, 1]}


def test_one_request_decodes_alone_in_one_step_at_a_time() -> None:
    bench = Bench(standard(), request("alone", 4, 5), num_stages=4)

    steps = bench.finish()

    assert [each for each in steps if each] == [{"alone": 4}, *[{"alone": 1}] * 4]


class FailsOnce(CountingRunner):
    """Raises in one step, before it computes anything."""

    fails_at = 1
    num_steps = 0

    def run(self, step: Step) -> StepResult:
        self.num_steps += 1
        if self.num_steps - 1 == self.fails_at:
            raise RuntimeError("no such kernel")
        return super().run(step)


def test_a_chunk_that_fails_in_flight_is_found_by_no_other_prompt() -> None:
    runner = FailsOnce(block_size=BLOCK_SIZE)
    prompt = tokens("same", 8 * BLOCK_SIZE)
    bench = Bench(mix(32), request("a", 0, 2, prompt=prompt), num_stages=4, runner=runner)
    bench.step()
    assert bench.step().failed.keys() == {"a"}

    bench.add(request("b", 0, 2, prompt=prompt))
    bench.finish()

    assert bench.engine.stats().num_hit_tokens == 0
    assert bench.said == {"b": [0, 1]}


def test_steps_in_flight_are_over_before_a_sequence_is_preempted() -> None:
    requests = [request(name, 40, 60) for name in "abcd"]
    bench = Bench(standard(), *requests, num_blocks=14, num_host_blocks=8, num_stages=2)

    while not bench.engine.stats().num_preemptions:
        opened = len(in_flight(bench))
        bench.step()

    assert opened == 0
    bench.finish()
    assert bench.said == {name: list(range(60)) for name in "abcd"}
    assert bench.is_empty
