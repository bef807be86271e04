"""Preemption, common beginnings and rows that change places."""

from __future__ import annotations

from tests.backends.llm_planning import Engine, alone, decoding, limits, reading, start
from tritrio.backends.llm._planner_rows import PREFIX_WAIT_STEPS_MAX
from tritrio.backends.llm.steps import Prefill, RowCopy, RowSwap


def row_of(engine: Engine, sequence_id: int) -> int:
    """Where a sequence goes on in the last step."""
    plan = engine.plans[-1]
    (row,) = [each.row for each in plan.decodes if each.sequence_id == sequence_id]
    return row


def test_the_last_to_come_gives_up_its_row_and_goes_on_where_it_was() -> None:
    engine = Engine(limits(budget_tokens=5 * 16, step_tokens=1000))
    starts = [start(1, 16, max_tokens=40), start(2, 16, max_tokens=40)]
    engine.add(*starts)
    engine.steps(17)  # both have two blocks and 33 tokens
    assert engine.planner.preemptions == 0
    plan = engine.step()
    assert plan is not None
    assert decoding(plan) == [1]  # with the third block, and one block is too few for the other
    assert (engine.planner.preemptions, engine.planner.waiting) == (1, 1)
    assert plan.leaves == ()
    engine.run()
    assert engine.finished() == [1, 2]
    for each in starts:
        assert engine.texts[each.id] == alone(each, engine.limits)
    assert engine.model.joined == [1, 2]
    # Read again in one part: the prompt and the 17 tokens that it had.
    again = [plan for plan in engine.plans[1:] if plan.prefills]
    assert [reading(plan) for plan in again] == [[(2, 33)]]
    assert engine.prompt_tokens_read == 16 + 16 + 33


def test_a_second_admission_does_not_count() -> None:
    engine = Engine(limits(budget_tokens=5 * 16, step_tokens=1000, prefix_caching=True))
    engine.add(start(1, 16, max_tokens=40), start(2, 16, max_tokens=40))
    engine.steps(18)
    facts = engine.planner.facts(2)
    engine.run()
    assert engine.planner.preemptions == 1
    assert (facts.admitted_s, facts.cached_tokens) == (0, 0)


def test_who_gave_up_its_row_comes_before_those_that_came_later() -> None:
    engine = Engine(limits(rows=2, budget_tokens=5 * 16, step_tokens=1000))
    engine.add(start(1, 16, max_tokens=40), start(2, 16, max_tokens=40))
    engine.steps(18)
    engine.add(start(3, 5, max_tokens=2), start(4, 5, priority=1, max_tokens=2))
    engine.run()
    assert engine.planner.preemptions == 1
    assert engine.model.joined == [1, 2, 3, 4]


def test_the_lower_priority_gives_up_its_row_though_it_came_first() -> None:
    engine = Engine(limits(budget_tokens=5 * 16, step_tokens=1000))
    engine.add(start(1, 16, priority=1), start(2, 16))
    engine.steps(17)
    assert decoding(engine.steps(1)[0]) == [2]


def test_cached_state_goes_before_anybody_gives_up_a_row() -> None:
    engine = Engine(limits(budget_tokens=6 * 16, step_tokens=1000, prefix_caching=True))
    engine.add(start(3, 32, max_tokens=1))
    engine.step()
    assert engine.planner.kv_cached_bytes == 2 * 32
    engine.add(start(1, 16), start(2, 16))
    engine.steps(33)
    assert (engine.planner.preemptions, engine.planner.kv_cached_bytes) == (0, 0)
    assert engine.planner.kv_used_bytes == 2 * 2 * 48


def test_a_paused_sequence_gives_up_its_row_when_others_need_its_room() -> None:
    engine = Engine(limits(budget_tokens=4 * 16, step_tokens=1000))
    starts = [start(1, 33, max_tokens=10), start(2, 9, max_tokens=30)]
    engine.add(starts[0])
    engine.step()
    engine.planner.pause(1)
    engine.add(starts[1])
    engine.run()  # the second one cannot even begin beside the first
    assert engine.finished() == [2]
    assert engine.planner.preemptions == 1
    engine.planner.resume(1)
    engine.run()
    for each in starts:
        assert engine.texts[each.id] == alone(each, engine.limits)


def test_one_that_goes_on_is_not_held_up_by_a_paused_one_that_came_before() -> None:
    engine = Engine(limits(budget_tokens=5 * 16, step_tokens=1000))
    engine.add(start(1, 33), start(2, 16))
    engine.step()
    engine.planner.pause(1)
    engine.steps(17)
    assert row_of(engine, 2) == 1
    assert engine.planner.preemptions == 1
    assert (engine.planner.running, engine.planner.waiting, engine.planner.paused) == (1, 0, 1)


def test_where_every_row_has_its_bytes_long_prompts_do_not_wait_for_more() -> None:
    of = limits(rows=3, tokens_per_row=48, step_tokens=1000, budget_tokens=3 * 48)
    engine = Engine(of)
    engine.add(*(start(number, 40, max_tokens=4) for number in range(3)))
    assert len(engine.steps(1)[0].prefills) == 3


def test_paused_sequences_do_not_keep_every_row_for_ever() -> None:
    engine = Engine(limits(rows=2))
    engine.add(start(1, 5), start(2, 5), start(3, 5, max_tokens=2))
    engine.step()
    engine.planner.pause(1)
    engine.planner.pause(2)
    engine.run()
    assert engine.finished() == [3]
    assert engine.planner.preemptions == 1
    assert (engine.planner.running, engine.planner.waiting, engine.planner.paused) == (0, 0, 2)


def test_what_is_cached_of_a_prompt_is_not_computed_again() -> None:
    engine = Engine(limits(prefix_caching=True))
    prompt = list(range(1, 61))
    engine.add(start(1, prompt, max_tokens=4))
    engine.run()
    longer = start(2, prompt + engine.texts[1] + [7, 8], max_tokens=4)
    engine.add(longer)
    plan = engine.step()
    assert plan is not None
    assert plan.copies == ()
    assert plan.prefills == (Prefill(2, 0, (engine.texts[1][-1], 7, 8), 63, samples=True),)
    assert engine.planner.facts(2).cached_tokens == 63
    engine.run()
    assert engine.texts[2] == alone(longer, engine.limits)
    assert engine.prompt_tokens_read == 60 + 3


def test_the_beginning_of_one_that_goes_on_is_copied() -> None:
    engine = Engine(limits(prefix_caching=True))
    prompt = list(range(1, 61))
    engine.add(start(1, prompt))
    engine.steps(3)
    second = start(2, prompt[:50] + [7] * 5, max_tokens=4)
    engine.add(second)
    plan = engine.step()
    assert plan is not None
    assert plan.copies == (RowCopy(0, 1, 50),)
    assert reading(plan) == [(2, 5)]
    assert engine.planner.facts(2).cached_tokens == 50
    engine.steps(5)
    assert engine.texts[2] == alone(second, engine.limits)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine = Engine(limits(prefix_caching=True))
    engine.add(start(1, range(1, 41)))
    engine.step()
    engine.add(start(2, range(1, 41), max_tokens=2))
    engine.steps(2)
    assert engine.plans[1].prefills == (Prefill(2, 1, (40,), 39, samples=True),)
    assert engine.texts[2] == engine.texts[1][:2]


def test_a_prompt_is_computed_from_further_ahead_where_too_little_is_left() -> None:
    engine = Engine(limits(prefix_caching=True, prefill_tokens_min=2))
    engine.add(start(1, range(1, 41)))
    engine.step()
    engine.add(start(2, range(1, 41), max_tokens=2))
    engine.steps(2)
    assert engine.plans[1].copies == (RowCopy(0, 1, 39),)
    assert engine.plans[1].prefills == (Prefill(2, 1, (39, 40), 38, samples=True),)
    assert engine.texts[2] == engine.texts[1][:2]


def test_what_is_computed_when_a_sequence_is_removed_stays_cached() -> None:
    engine = Engine(limits(step_tokens=20, prefix_caching=True))
    engine.add(start(1, range(1, 101)))
    engine.steps(2)
    engine.planner.plan(0)
    engine.planner.remove(1)  # while the third part is read
    assert engine.planner.kv_used_bytes == 0
    assert engine.planner.kv_cached_bytes == 2 * 48


def test_prompts_that_come_together_are_computed_once() -> None:
    engine = Engine(limits(rows=3, prefix_caching=True, step_tokens=32))
    starts = [start(each, [*range(1, 101), each], max_tokens=3) for each in (1, 2, 3)]
    other = start(4, 5, max_tokens=3)
    engine.add(*starts, other)
    plans = engine.run()
    assert [reading(plan) for plan in plans[:3]] == [[(1, 32)], [(1, 32)], [(1, 32)]]
    assert reading(plans[3]) == [(1, 5), (2, 5), (3, 5)]
    # The whole blocks that they share are there after three steps: nobody waits for the end.
    assert plans[3].copies == (RowCopy(0, 1, 96), RowCopy(0, 2, 96))
    assert engine.prompt_tokens_read == 101 + 5 + 5 + 5
    for each in (*starts, other):
        assert engine.texts[each.id] == alone(each, engine.limits)


def test_one_that_waits_for_a_common_beginning_keeps_a_row_free() -> None:
    engine = Engine(limits(rows=2, prefix_caching=True, step_tokens=32))
    engine.add(start(1, [*range(1, 101), 1]), start(2, [*range(1, 101), 2]), start(3, 5))
    engine.steps(5)
    assert engine.model.joined == [1, 2]


def test_nobody_waits_for_a_beginning_that_is_not_being_read() -> None:
    engine = Engine(limits(prefix_caching=True, step_tokens=32))
    engine.add(start(1, [*range(1, 101), 1]), start(2, [*range(1, 101), 2]))
    engine.step()
    engine.planner.pause(1)
    (plan,) = engine.steps(1)
    assert plan.copies == (RowCopy(0, 1, 32),)
    assert reading(plan) == [(2, 32)]


def test_the_wait_for_a_common_beginning_is_bounded() -> None:
    engine = Engine(limits(rows=2, prefix_caching=True, step_tokens=2))
    tokens = 2 * PREFIX_WAIT_STEPS_MAX + 100
    engine.add(start(1, [*range(1, tokens), 1]), start(2, [*range(1, tokens), 2]))
    engine.steps(PREFIX_WAIT_STEPS_MAX)
    assert engine.planner.waiting == 1
    engine.step()
    assert engine.planner.waiting == 0


def test_the_highest_row_takes_the_place_of_the_lowest_idle_one() -> None:
    engine = Engine(limits(rows=5, contiguous=True))
    starts = [start(each, 4 + each, max_tokens=20) for each in range(5)]
    engine.add(*starts)
    engine.steps(2)
    engine.planner.remove(0)
    engine.planner.remove(2)
    first, second, third = engine.steps(3)
    assert first.swaps == (RowSwap(0, 4, 0, 9),)
    assert first.idle_rows == {2: 0}
    assert second.swaps == (RowSwap(2, 3, 0, 9),)
    assert second.idle_rows == {}
    assert [each.row for each in second.decodes] == [0, 1, 2]
    assert third.swaps == ()
    engine.run()
    for each in (1, 3, 4):
        assert engine.texts[each] == alone(starts[each], engine.limits)


def test_a_paused_sequence_moves_up() -> None:
    engine = Engine(limits(rows=3, contiguous=True))
    starts = [start(each, 4 + each, max_tokens=9) for each in range(3)]
    engine.add(*starts)
    engine.steps(2)
    engine.planner.pause(0)
    (plan,) = engine.steps(1)
    assert plan.swaps == (RowSwap(0, 2, 5, 7),)
    assert plan.idle_rows == {}
    engine.planner.resume(0)
    engine.run()
    for each in starts:
        assert engine.texts[each.id] == alone(each, engine.limits)


def test_rows_stay_where_they_are_while_somebody_waits_for_one() -> None:
    engine = Engine(limits(rows=2, contiguous=True))
    engine.add(start(0, 4), start(1, 4), start(2, 4))
    engine.steps(2)
    engine.planner.remove(0)
    (plan,) = engine.steps(1)
    assert plan.swaps == ()
    assert [each.row for each in plan.prefills] == [0]


def test_rows_stay_where_they_are_where_gaps_cost_nothing() -> None:
    engine = Engine(limits(rows=3))
    engine.add(start(0, 4), start(1, 4), start(2, 4))
    engine.steps(2)
    engine.planner.remove(0)
    (plan,) = engine.steps(1)
    assert plan.swaps == ()
    assert [each.row for each in plan.decodes] == [1, 2]


def test_idle_rows_tell_what_is_to_be_kept_in_them() -> None:
    engine = Engine(limits(rows=5, step_tokens=12, prefix_caching=True))
    engine.add(start(0, 4), start(1, 4), start(2, 4))
    engine.steps(2)
    engine.planner.remove(0)  # keeps the state of five tokens
    engine.planner.pause(1)
    engine.add(start(3, 30), start(4, 1))
    engine.steps(3)
    plan = engine.plans[-1]
    assert decoding(plan) == [2, 4]
    assert [each.row for each in plan.decodes] == [2, 4]
    assert [(each.row, each.past) for each in plan.prefills] == [(3, 21)]
    assert plan.idle_rows == {0: 5, 1: 5, 3: 21}
