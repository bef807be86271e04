from __future__ import annotations

from typing import Any

import pytest

from tests.backends.llm_planning import (
    END,
    Engine,
    alone,
    decoding,
    limits,
    next_token,
    reading,
    start,
)
from tritrio.backends.llm.planner import StepPlanner
from tritrio.backends.llm.steps import (
    Decode,
    EngineLimits,
    Prefill,
    SequenceFault,
    StepResult,
    TokenChoice,
    TokenEvent,
)
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.sampling_params import FinishReason


def refusal(of: EngineLimits, tokens: int) -> str:
    with pytest.raises(RequestError) as caught:
        StepPlanner(of).add(start(1, tokens))
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


def test_one_sequence_is_read_and_goes_on_until_it_has_its_tokens() -> None:
    engine = Engine(limits())
    of = start(7, [5, 6, 8], max_tokens=3)
    engine.add(of)
    text = alone(of, engine.limits)
    first, second, third, last = engine.run()
    assert first.joins == (of,)
    assert first.prefills == (Prefill(7, 0, (5, 6, 8), 0, samples=True),)
    assert first.decodes == ()
    assert second.decodes == (Decode(7, 0, text[0], 3),)
    assert second.joins == ()
    assert third.decodes == (Decode(7, 0, text[1], 4),)
    assert (last.leaves, last.decodes, last.prefills) == ((7,), (), ())
    assert engine.texts[7] == text
    assert [event.finish for event in engine.events] == [None, None, FinishReason.LENGTH]
    assert (engine.planner.running, engine.planner.kv_used_bytes) == (0, 0)


def test_without_anything_to_do_there_is_no_step() -> None:
    planner = StepPlanner(limits())
    assert planner.plan(0) is None
    planner.add(start(1, 3))
    planner.remove(1)
    assert planner.plan(0) is None


def test_an_empty_prompt_is_refused() -> None:
    assert refusal(limits(), 0) == "a prompt needs at least one token, and this one has none"


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused() -> None:
    of = limits(tokens_per_row=50)
    StepPlanner(of).add(start(1, 49))
    assert refusal(of, 50) == (
        "the prompt has 50 tokens, and with it the text would have more than the 50 that the model"
        " can take: 49 are left for a prompt"
    )


def test_a_prompt_whose_state_never_fits_is_refused() -> None:
    of = limits(budget_tokens=40)  # two whole blocks
    StepPlanner(of).add(start(1, 32))
    assert refusal(of, 33) == (
        "the state of the prompt's 33 tokens takes 96 bytes, more than the 80 that the model has"
        " for it"
    )


@pytest.mark.parametrize(
    ("of", "most"),
    [(limits(tokens_per_row=50), 50), (limits(budget_tokens=40), 33)],
)
def test_a_text_ends_where_there_is_no_room_for_more(of: EngineLimits, most: int) -> None:
    engine = Engine(of)
    engine.add(start(1, 10))
    engine.run()
    assert len(engine.texts[1]) == most - 10
    assert engine.events[-1].finish is FinishReason.LENGTH


def one_choice(choice: TokenChoice, **params: Any) -> TokenEvent:
    """What becomes of a sequence's first token."""
    planner = StepPlanner(limits())
    planner.add(start(1, 3, **params))
    plan = planner.plan(0)
    assert plan is not None
    (event,) = planner.commit(plan, StepResult(choices={1: choice}))
    assert event.choice is choice
    assert planner.running == (event.finish is None)
    return event


@pytest.mark.parametrize(
    ("choice", "params", "finish", "stop_token"),
    [
        (TokenChoice(5), {}, None, False),
        (TokenChoice(END), {"ignore_eos": False}, FinishReason.STOP, True),
        (TokenChoice(END), {}, None, False),
        (TokenChoice(5), {"stop_token_ids": (4, 5)}, FinishReason.STOP, True),
        (TokenChoice(END), {"stop_token_ids": (END,)}, FinishReason.STOP, True),
        (TokenChoice(5), {"max_tokens": 1}, FinishReason.LENGTH, False),
        (TokenChoice(5), {"max_tokens": 2}, None, False),
        (TokenChoice(5), {"max_tokens": 1, "stop_token_ids": (5,)}, FinishReason.STOP, True),
        (TokenChoice(5, ends_guide=True), {"max_tokens": 1}, FinishReason.STOP, False),
        (TokenChoice(END, ends_guide=True), {}, FinishReason.STOP, True),
    ],
)
def test_a_sequence_is_complete(
    choice: TokenChoice, params: dict[str, Any], finish: FinishReason | None, stop_token: bool
) -> None:
    event = one_choice(choice, **params)
    assert (event.finish, event.stop_token) == (finish, stop_token)


def test_a_long_prompt_is_read_in_parts_and_those_that_go_on_come_first() -> None:
    engine = Engine(limits(step_tokens=10))
    engine.add(start(1, 3))
    engine.step()
    engine.add(start(2, 25))
    plans = engine.steps(4)
    assert [reading(plan) for plan in plans] == [[(2, 9)], [(2, 9)], [(2, 7)], []]
    assert [decoding(plan) for plan in plans] == [[1], [1], [1], [1, 2]]
    assert [each.samples for plan in plans for each in plan.prefills] == [False, False, True]


def test_a_prompt_is_read_though_others_take_the_whole_step() -> None:
    engine = Engine(limits(step_tokens=2))
    engine.add(start(1, 1), start(2, 1))
    engine.step()
    engine.add(start(3, 3))
    plans = engine.steps(4)
    assert [decoding(plan) for plan in plans] == [[1, 2], [1, 2], [1, 2], [1, 2, 3]]
    assert [reading(plan) for plan in plans] == [[(3, 1)], [(3, 1)], [(3, 1)], []]


@pytest.mark.parametrize("step_tokens", [2, 3, 8, 12])
def test_no_part_of_a_prompt_is_shorter_than_the_model_wants(step_tokens: int) -> None:
    engine = Engine(limits(step_tokens=step_tokens, prefill_tokens_min=2))
    of = start(1, range(1, 26), max_tokens=3)
    engine.add(of)
    plans = engine.run()  # the last of 25 tokens is left over: the one before it is read again
    assert plans[(25 - 1) // step_tokens].prefills[-1].samples
    assert min(len(each.tokens) for plan in plans for each in plan.prefills) == 2
    assert engine.texts[1] == alone(of, engine.limits)


def test_a_prompt_that_is_too_short_for_a_part_is_read_as_it_is() -> None:
    engine = Engine(limits(prefill_tokens_min=2))
    engine.add(start(1, 1), start(2, 2))
    assert [reading(plan) for plan in engine.steps(1)] == [[(1, 1), (2, 2)]]


def test_what_is_left_of_a_step_waits_if_it_is_too_short_for_a_part() -> None:
    engine = Engine(limits(step_tokens=10, prefill_tokens_min=2))
    engine.add(start(1, 9), start(2, 5), start(3, 5))
    assert [reading(plan) for plan in engine.steps(2)] == [[(1, 9)], [(2, 5), (3, 4)]]
    assert reading(engine.steps(1)[0]) == [(3, 2)]


def test_prompts_take_turns() -> None:
    engine = Engine(limits(step_tokens=10))
    engine.add(start(1, 25), start(2, 25), start(3, 4))
    assert [reading(plan) for plan in engine.steps(6)] == [
        [(1, 10)],
        [(2, 10)],
        [(3, 4), (1, 6)],
        [(2, 9)],
        [(1, 9)],
        [(2, 6)],
    ]


def test_newcomers_do_not_keep_a_long_prompt_from_being_read() -> None:
    engine = Engine(limits(rows=3, step_tokens=10))
    engine.add(start(1, 50))
    for newcomer in range(2, 30):
        engine.add(start(newcomer, 10, max_tokens=1))
        engine.step()
    assert engine.texts[1]


def test_the_prompt_with_the_higher_priority_is_read_first() -> None:
    engine = Engine(limits(step_tokens=10))
    engine.add(start(1, 10), start(2, 10, priority=-1))
    assert [reading(plan) for plan in engine.steps(1)] == [[(2, 10)]]


def test_rows_go_to_the_highest_priority_then_to_the_first() -> None:
    engine = Engine(limits(rows=1))
    engine.add(
        start(1, 3, max_tokens=1),
        start(2, 3, priority=2, max_tokens=1),
        start(3, 3, priority=1, max_tokens=1),
        start(4, 3, priority=2, max_tokens=1),
        start(5, 3, priority=1, max_tokens=1),
    )
    assert (engine.planner.running, engine.planner.waiting) == (0, 5)
    engine.run()
    assert engine.finished() == [1, 3, 5, 2, 4]


def test_a_smaller_one_does_not_overtake() -> None:
    engine = Engine(limits(budget_tokens=160, step_tokens=1000))
    engine.add(start(1, 60, max_tokens=30), start(2, 100, max_tokens=5), start(3, 5, max_tokens=5))
    engine.steps(30)
    assert (engine.planner.running, engine.planner.waiting) == (0, 2)
    engine.run()
    assert engine.model.joined == [1, 2, 3]
    assert engine.planner.preemptions == 0


def test_an_admission_leaves_a_block_for_each_of_the_others() -> None:
    engine = Engine(limits(budget_tokens=4 * 16, step_tokens=1000))
    engine.add(start(1, 16), start(2, 33))
    engine.step()
    assert engine.planner.waiting == 1

    engine = Engine(limits(budget_tokens=5 * 16, step_tokens=1000))
    engine.add(start(1, 16), start(2, 33))
    engine.step()
    assert engine.planner.waiting == 0


def test_bytes_are_those_of_all_tokens_in_whole_blocks() -> None:
    engine = Engine(limits(step_tokens=10))
    engine.add(start(1, 30))
    engine.step()
    assert engine.planner.kv_used_bytes == 2 * 32
    engine.steps(4)  # it has 32 tokens and a new one
    engine.step()
    assert engine.planner.kv_used_bytes == 2 * 48
    assert engine.planner.kv_budget_bytes == 200_000
    engine.planner.remove(1)
    assert (engine.planner.kv_used_bytes, engine.planner.kv_cached_bytes) == (0, 0)


def test_the_sampler_hears_of_each_sequence_once() -> None:
    engine = Engine(limits(rows=2, step_tokens=4))
    engine.add(start(1, 4, max_tokens=2), start(2, 4, max_tokens=2), start(3, 4, max_tokens=2))
    engine.step()
    assert engine.model.joined == [1]
    engine.planner.remove(2)  # has a row, and was in no step
    engine.planner.remove(3)  # has none
    engine.run()
    assert (engine.model.joined, engine.model.left) == ([1], [1])


def test_what_is_chosen_for_a_removed_sequence_is_ignored() -> None:
    engine = Engine(limits())
    engine.add(start(1, 4), start(2, 4))
    engine.step()
    plan = engine.planner.plan(0)
    assert plan is not None
    assert decoding(plan) == [1, 2]
    engine.planner.remove(1)
    assert engine.planner.kv_used_bytes == 2 * 16
    assert engine.planner.running == 1
    events = engine.commit(plan, engine.model.step(plan))
    assert [event.sequence_id for event in events] == [2]
    following = engine.step()
    assert following is not None
    assert following.leaves == (1,)
    engine.planner.remove(1)  # once more does no harm


def test_a_paused_sequence_keeps_its_row_and_is_in_no_step() -> None:
    engine = Engine(limits())
    engine.add(start(1, 4), start(2, 40, max_tokens=6))
    engine.step()
    engine.planner.pause(2)
    assert engine.planner.paused == 1
    assert [decoding(plan) for plan in engine.steps(3)] == [[1]] * 3
    assert (engine.planner.running, engine.planner.paused) == (1, 1)
    engine.planner.resume(2)
    assert decoding(engine.steps(1)[0]) == [1, 2]
    engine.planner.remove(1)
    engine.run()
    assert engine.texts[2] == alone(start(2, 40, max_tokens=6), engine.limits)


def test_the_token_of_a_step_under_way_comes_though_its_sequence_is_paused() -> None:
    engine = Engine(limits())
    engine.add(start(1, 4))
    plan = engine.planner.plan(0)
    assert plan is not None
    engine.planner.pause(1)
    assert len(engine.commit(plan, engine.model.step(plan))) == 1
    assert engine.planner.plan(0) is None


def test_a_paused_sequence_that_waits_lets_others_pass() -> None:
    engine = Engine(limits(rows=1))
    engine.add(start(1, 4, max_tokens=1), start(2, 4, max_tokens=1))
    engine.planner.pause(1)
    engine.run()
    assert engine.finished() == [2]
    engine.planner.resume(1)
    engine.run()
    assert engine.finished() == [2, 1]


def test_a_sequence_that_cannot_go_on_ends_alone() -> None:
    engine = Engine(limits(prefix_caching=True))
    engine.add(start(1, 40), start(2, 40))
    engine.step()
    plan = engine.planner.plan(0)
    assert plan is not None
    events = engine.commit(plan, engine.model.step(plan, faults={1}))
    assert events[0] == TokenEvent(1, None, fault=SequenceFault("broken"))
    assert events[1].choice is not None
    assert engine.planner.kv_cached_bytes == 0
    following = engine.step()
    assert following is not None
    assert (following.leaves, decoding(following)) == ((1,), [2])


def test_a_failed_step_ends_its_sequences_and_the_others_start_anew() -> None:
    engine = Engine(limits(rows=2, prefix_caching=True))
    engine.add(start(1, 40), start(2, 40, max_tokens=5), start(3, 40, max_tokens=5))
    engine.step()
    engine.planner.pause(2)
    plan = engine.planner.plan(0)
    assert plan is not None
    assert engine.planner.fail(plan, "out of memory") == [
        TokenEvent(1, None, fault=SequenceFault("out of memory"))
    ]
    for row in engine.model.rows:
        row.clear()
    planner = engine.planner
    assert (planner.running, planner.waiting, planner.paused) == (0, 1, 1)
    assert (engine.planner.kv_used_bytes, engine.planner.kv_cached_bytes) == (0, 0)
    engine.planner.resume(2)
    engine.run()
    assert engine.finished() == [2, 3]
    for each in (2, 3):
        assert engine.texts[each] == alone(start(each, 40, max_tokens=5), engine.limits)
    assert sorted(engine.model.left) == [1, 2, 3]


def test_a_lost_instance_ends_every_sequence() -> None:
    engine = Engine(limits(rows=1, prefix_caching=True))
    engine.add(start(1, 40), start(2, 4))
    engine.step()
    assert engine.planner.plan(0) is not None
    assert engine.planner.reset("gone") == [
        TokenEvent(1, None, fault=SequenceFault("gone")),
        TokenEvent(2, None, fault=SequenceFault("gone")),
    ]
    assert (engine.planner.running, engine.planner.waiting) == (0, 0)
    assert (engine.planner.kv_used_bytes, engine.planner.kv_cached_bytes) == (0, 0)
    assert engine.planner.plan(0) is None


def test_facts_tell_when_a_sequence_got_its_row() -> None:
    engine = Engine(limits(rows=1, step_tokens=10))
    engine.add(start(1, 5, max_tokens=3))
    engine.step()
    engine.add(start(2, 15, max_tokens=1))
    assert engine.planner.facts(2).admitted_s is None
    engine.steps(4)
    assert engine.finished() == [1, 2]
    assert engine.planner.facts(2).admitted_s == 3
    engine.step()
    with pytest.raises(KeyError):
        engine.planner.facts(2)
    assert engine.prompt_tokens_read == 20
    assert engine.texts[2] == [next_token([102] * 15)]
