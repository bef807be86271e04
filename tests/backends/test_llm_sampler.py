"""How tokens are chosen: every cut, penalty and bias on logits made by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tritrio.backends.llm.sampler import Sampler, top_indices
from tritrio.backends.llm.steps import GuideFaultError, SequenceFault, SequenceStart, TokenChoice
from tritrio.protocol.sampling_params import SamplingParams
from tritrio.protocol.tensors import Array

END = 0


def start(
    sequence_id: int = 1,
    *,
    prompt: Sequence[int] = (1,),
    seed: int = 7,
    guide: Any = None,
    **params: Any,
) -> SequenceStart:
    return SequenceStart(
        id=sequence_id,
        prompt=tuple(prompt),
        params=SamplingParams(**params),
        seed=seed,
        guide=guide,
    )


def rows(*values: Sequence[float]) -> Array:
    return np.array(values, np.float32)


class One:
    """One sequence by itself, whose logits are given step by step."""

    def __init__(self, vocabulary_size: int, **params: Any) -> None:
        self.sampler = Sampler(vocabulary_size, {END})
        self.sampler.join(start(**params))

    def choice(self, *logits: float) -> TokenChoice:
        (choice,), faults = self.sampler.sample(rows(logits), [1])
        assert not faults
        assert choice is not None
        return choice

    def token(self, *logits: float) -> int:
        return self.choice(*logits).token

    def tokens(self, count: int, *logits: float) -> list[int]:
        row = rows(logits)
        choices = [self.sampler.sample(row, [1])[0][0] for _ in range(count)]
        return [choice.token for choice in choices if choice is not None]

    def fault(self, *logits: float) -> str:
        choices, faults = self.sampler.sample(rows(logits), [1])
        assert choices == [None]
        return faults[1].reason


def logs(*probabilities: float) -> list[float]:
    return [math.log(each) for each in probabilities]


def check_distribution(tokens: Sequence[int], probabilities: Sequence[float]) -> None:
    """Compare draws with what they should follow: chi-square, 0.1 % for up to 5 degrees."""
    counts = Counter(tokens)
    assert {token for token, part in enumerate(probabilities) if not part}.isdisjoint(counts)
    expected = [part * len(tokens) for part in probabilities]
    chi = sum((counts[t] - each) ** 2 / each for t, each in enumerate(expected) if each)
    assert chi < 20.5


def test_temperature_zero_takes_the_highest_and_of_equal_ones_the_first() -> None:
    one = One(4, temperature=0)
    assert one.token(1, 3, 2, 3) == 1
    assert one.token(-5, -4, -3, -9) == 2


def test_draws_follow_the_probabilities() -> None:
    probabilities = [0.4, 0.3, 0.15, 0.1, 0.05]
    check_distribution(One(5).tokens(4000, *logs(*probabilities)), probabilities)


def test_temperature_sharpens() -> None:
    powers = [0.5**2, 0.3**2, 0.2**2]
    expected = [each / sum(powers) for each in powers]
    check_distribution(One(3, temperature=0.5).tokens(4000, *logs(0.5, 0.3, 0.2)), expected)


def test_a_temperature_near_zero_is_zero() -> None:
    assert set(One(2, temperature=1e-300).tokens(20, 1, 1.0001)) == {1}


def test_logits_far_apart_are_drawn_from() -> None:
    assert set(One(2, temperature=1e-5).tokens(20, -3e38, 3e38)) == {1}


@pytest.mark.parametrize("cuts", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_at_any_temperature_what_may_not_come_does_not(cuts: dict[str, Any]) -> None:
    one = One(4, temperature=1e308, min_tokens=1000, **cuts)
    assert set(one.tokens(100, 9.0, 2.0, 1.0, -math.inf)) == {1, 2}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1e-320, 1e-46, 1e-38, 1e38, 1e308])
def test_any_repetition_penalty_leaves_a_choice(penalty: float, temperature: float) -> None:
    one = One(4, prompt=range(4), repetition_penalty=penalty, temperature=temperature)
    assert one.token(-1e9, 0.0, 2e9, -math.inf) in {1, 2}


def test_impossible_tokens_are_never_drawn() -> None:
    assert set(One(4).tokens(50, -math.inf, 1, -math.inf, 1)) == {1, 3}


def test_top_k_keeps_exactly_so_many_and_of_equal_ones_the_first() -> None:
    probabilities = [0.1, 0.2, 0.4, 0.2, 0.1]
    drawn = One(5, top_k=2).tokens(4000, *logs(*probabilities))
    check_distribution(drawn, [0, 1 / 3, 2 / 3, 0, 0])


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    check_distribution(One(2, top_k=99).tokens(2000, 0, 0), [0.5, 0.5])


def test_top_p_keeps_the_fewest_that_make_it_up() -> None:
    logits = logs(0.1, 0.5, 0.15, 0.25)
    check_distribution(One(4, top_p=0.7).tokens(4000, *logits), [0, 2 / 3, 0, 1 / 3])
    check_distribution(One(4, top_p=0.5).tokens(200, *logits), [0, 1, 0, 0])
    check_distribution(One(4, top_p=0.76).tokens(4000, *logits), [0, 5 / 9, 1.5 / 9, 2.5 / 9])
    check_distribution(One(4, top_p=1e-9).tokens(200, *logits), [0, 1, 0, 0])


def test_top_p_keeps_the_first_of_equal_ones() -> None:
    check_distribution(One(4, top_p=0.5).tokens(2000, 1, 1, 1, 1), [0.5, 0.5, 0, 0])


def test_the_smallest_top_p_keeps_one_of_equal_ones() -> None:
    for cuts in ({}, {"top_k": 1}, {"min_p": 1.0}):
        assert set(One(3, top_p=1e-300, **cuts).tokens(20, 2.0, 2.0, 2.0)) == {0}


def test_min_p_is_a_part_of_the_highest() -> None:
    logits = logs(0.5, 0.26, 0.24)
    check_distribution(One(3, min_p=0.5).tokens(4000, *logits), [0.5 / 0.76, 0.26 / 0.76, 0])


def test_each_cut_sees_what_the_ones_before_it_left() -> None:
    # Of three tokens kept by top_k, 0.4 is 4/9 and 0.3 is 3/9: 7/9 are no less than 0.75. Of all
    # tokens they would be 0.7.
    logits = logs(0.4, 0.3, 0.2, 0.1)
    check_distribution(One(4, top_k=3, top_p=0.75).tokens(4000, *logits), [4 / 7, 3 / 7, 0, 0])
    # What is left keeps its ids: min_p takes the first one away, top_k the last one.
    logits = logs(0.01, 0.5, 0.3, 0.19)
    check_distribution(One(4, min_p=0.1, top_k=2).tokens(4000, *logits), [0, 5 / 8, 3 / 8, 0])
    one = One(4, min_p=0.1, top_k=2, top_p=0.6)
    check_distribution(one.tokens(200, *logits), [0, 1, 0, 0])
    logits = logs(0.4, 0.3, 0.2, 0.1)
    # min_p leaves the first two, of which the first is 4/7.
    check_distribution(One(4, min_p=0.6, top_p=0.55).tokens(200, *logits), [1, 0, 0, 0])


def test_a_large_vocabulary_is_cut_as_sorting_would() -> None:
    logits = np.random.default_rng(3).normal(0, 2, 5000).astype(np.float32)
    weights = np.exp(logits.astype(np.float64))
    order = np.argsort(-weights)
    count = int(np.searchsorted(np.cumsum(weights[order]), 0.3 * weights.sum())) + 1
    one = One(5000, top_p=0.3)
    drawn = {one.sampler.sample(logits[None], [1])[0][0].token for _ in range(2000)}  # type: ignore[union-attr]
    assert drawn <= set(order[:count].tolist())
    assert set(order[:10].tolist()) <= drawn
    assert top_indices(logits, 10).tolist() == order[:10].tolist()


def test_a_text_depends_on_its_seed_alone() -> None:
    logits = np.random.default_rng(5).normal(0, 1, (40, 50)).astype(np.float32)

    def alone(seed: int) -> list[int]:
        one = One(50, seed=seed)
        return [one.token(*row) for row in logits]

    seeds = {1: 11, 2: 12, 3: 11}
    joined_at = {1: 0, 2: 5, 3: 9}
    sampler = Sampler(50, {END})
    texts: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for step in range(50):
        for each, seed in seeds.items():
            if joined_at[each] == step:
                sampler.join(start(each, seed=seed))
        # Who is there sits out now and then, as if it had been preempted.
        ids = [each for each in texts if joined_at[each] <= step and step % (each + 1)]
        ids = [each for each in ids if len(texts[each]) < 20][:: 1 if step % 2 else -1]
        choices, _ = sampler.sample(logits[[len(texts[each]) for each in ids]], ids)
        for each, choice in zip(ids, choices, strict=True):
            assert choice is not None
            texts[each].append(choice.token)
    assert texts == {each: alone(seed)[:20] for each, seed in seeds.items()}
    assert texts[1] == texts[3] != texts[2]


def test_a_seed_means_the_same_in_every_release() -> None:
    assert One(10, seed=42).tokens(12, *[0.0] * 10) == [1, 2, 0, 9, 7, 9, 5, 2, 1, 6, 2, 7]
    assert One(10, seed=-1).tokens(12, *[0.0] * 10) == [8, 2, 8, 4, 0, 2, 5, 1, 3, 6, 8, 6]


def test_penalties_count_what_they_should() -> None:
    one = One(
        6,
        prompt=[1, 2, 2],
        temperature=0,
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    )
    # The prompt counts for repetition: 1 has 4 / 2, 2 has -1 * 2.
    assert one.token(-9, 4, -1, 1.9, 0, 0) == 1
    # Now 1 has 4 / 2 - 0.5 - 0.25 = 1.25.
    assert one.token(-9, 4, -1, 1.2, 0, 0) == 1
    # And 4 / 2 - 0.5 - 2 * 0.25 = 1.
    assert one.token(-9, 4, -1, 1.01, 0, 0) == 3
    # 3 has 3 / 2 - 0.75 = 0.75.
    assert one.token(-9, 0, -1, 3, 0.76, 0) == 4
    # 2 is in the prompt only: -1 * 2, and 5 is nowhere.
    assert one.token(-9, -9, -1, -9, -9, -1.9) == 5


def test_presence_and_frequency_leave_the_prompt_alone() -> None:
    one = One(3, prompt=[1], temperature=0, presence_penalty=2.0, frequency_penalty=2.0)
    assert one.token(0, 1, 0.9) == 1
    assert one.token(0, 1, 0.9) == 2


def test_penalties_of_many_tokens_are_kept() -> None:
    one = One(1000, prompt=range(100), temperature=0, presence_penalty=2.0)
    assert [one.token(*np.arange(1000, 0, -1.0) / 1000) for _ in range(300)] == list(range(300))


def test_tokens_of_the_prompt_beyond_the_vocabulary_are_nobodys() -> None:
    assert One(3, prompt=[1, 7], temperature=0, repetition_penalty=2.0).token(0, 1, 0.9) == 2


def test_a_bias_forbids_and_forces() -> None:
    one = One(3, temperature=1.0, logit_bias={1: -100.0})
    assert 1 not in one.tokens(200, 0, 10, 0)
    assert set(One(3, logit_bias={2: 100.0}).tokens(200, 5, 10, 0)) == {2}
    assert One(3, temperature=0, logit_bias={2: 1.5, 9: 5.0}).token(0, 1, 0) == 2


def test_no_end_token_comes_before_the_least_number_of_tokens() -> None:
    one = One(4, temperature=0, min_tokens=2, stop_token_ids=(3,))
    assert [one.token(9, 1, 2, 8) for _ in range(3)] == [2, 2, END]


def test_ignored_end_tokens_are_tokens_like_others() -> None:
    one = One(4, temperature=0, min_tokens=2, stop_token_ids=(3,), ignore_eos=True)
    assert one.token(9, 1, 2, 10) == END


def test_log_probabilities_are_those_of_the_untouched_logits() -> None:
    one = One(
        5,
        temperature=0.3,
        top_k=1,
        logit_bias={3: 100.0},
        repetition_penalty=1.5,
        logprobs=3,
    )
    logits = [0.5, 2.0, 2.0, 1.0, -1.0]
    choice = one.choice(*logits)
    expected = np.array(logits) - np.log(np.exp(logits).sum())
    assert choice.token == 3
    assert choice.logprob == pytest.approx(expected[3], abs=1e-6)
    assert choice.rank == 3
    assert [token for token, _ in choice.top] == [1, 2, 0 if logits[0] > logits[3] else 3]
    assert [value for _, value in choice.top] == pytest.approx([*expected[1:4]], abs=1e-6)


def test_log_probabilities_only_if_asked_for() -> None:
    assert One(3, temperature=0).choice(0, 1, 2) == TokenChoice(2)
    chosen_alone = One(3, temperature=0, logprobs=0).choice(0, 1, 2)
    assert chosen_alone.top == ()
    assert chosen_alone.rank == 1
    assert One(3, temperature=0, logprobs=20).choice(0, 1, 2).top[0][0] == 2


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_none_fail_their_own_sequence(temperature: float, value: float) -> None:
    sampler = Sampler(2, {END})
    for sequence_id in (1, 2, 3):
        sampler.join(start(sequence_id, temperature=temperature))
    choices, faults = sampler.sample(rows([0, 9], [value, value], [0, 90]), [1, 2, 3])
    assert choices == [TokenChoice(1), None, TokenChoice(1)]
    reason = f"expected finite logits, got {value} from the model"
    assert faults == {2: SequenceFault(reason)}


def test_one_nan_among_numbers_is_found() -> None:
    assert "got nan" in One(3, temperature=0).fault(5, math.nan, 9)


def test_columns_beyond_the_vocabulary_are_padding() -> None:
    assert One(2, temperature=0).token(0, 1, 9, math.nan) == 1


def test_logits_are_left_as_they_are() -> None:
    one = One(4, logit_bias={1: 1.0}, presence_penalty=1.0, top_p=0.9, min_p=0.1, top_k=3)
    logits = rows([1, 2, 3, 4])
    for _ in range(3):
        one.sampler.sample(logits, [1])
    assert logits.tolist() == [[1, 2, 3, 4]]


def test_who_left_may_come_again() -> None:
    sampler = Sampler(5, {END})
    texts = []
    for _ in range(2):
        sampler.join(start(1))
        texts.append([sampler.sample(rows([0] * 5), [1])[0] for _ in range(9)])
        sampler.leave(1)
    sampler.leave(1)
    assert texts[0] == texts[1]


class Letters:
    """A guide by hand: the tokens of a list in their order, then nothing."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)

    def start(self) -> Letters:
        return Letters(*self.tokens)

    @property
    def is_complete(self) -> bool:
        return not self.tokens

    def allowed_mask(self) -> Array:
        if self.tokens[0] == 9:
            raise GuideFaultError("nine")
        return np.isin(np.arange(3), self.tokens[0])

    def advance(self, token: int) -> None:
        assert token == self.tokens.pop(0)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_guide_decides_what_may_come(temperature: float) -> None:
    one = One(4, temperature=temperature, guide=Letters(1, 2, 1))
    assert [one.choice(5, 0, -5, 99) for _ in range(3)] == [
        TokenChoice(1),
        TokenChoice(2),
        TokenChoice(1, ends_guide=True),
    ]


class LibraryPanic(BaseException):
    """What a library in Rust raises: no `Exception`."""


class Panicking(Letters):
    """A guide whose library panics, in one of its calls."""

    def __init__(self, call: str) -> None:
        super().__init__(1, 2)
        self.call = call

    def start(self) -> Letters:
        if self.call == "start":
            raise LibraryPanic("index out of bounds")
        return self

    def allowed_mask(self) -> Array:
        if self.call == "allowed_mask":
            raise LibraryPanic("index out of bounds")
        return super().allowed_mask()

    def advance(self, token: int) -> None:
        if self.call == "advance":
            raise LibraryPanic("index out of bounds")
        super().advance(token)


@pytest.mark.parametrize("call", ["start", "allowed_mask", "advance"])
def test_a_guide_that_panics_fails_its_own_sequence(call: str) -> None:
    sampler = Sampler(3, {END})
    sampler.join(start(1, guide=Panicking(call), temperature=0))
    sampler.join(start(2, temperature=0))
    choices, faults = sampler.sample(rows([1, 2, 0], [1, 2, 0]), [1, 2])
    assert choices == [None, TokenChoice(1)]
    why = "what the text is held to cannot be followed: LibraryPanic: index out of bounds"
    assert faults == {1: SequenceFault(why, of_request=True)}


def test_a_guide_that_fails_fails_its_own_sequence() -> None:
    sampler = Sampler(3, {END})
    sampler.join(start(1, guide=Letters(9)))
    sampler.join(start(2, temperature=0))
    assert sampler.sample(rows([0, 1, 2], [0, 1, 2]), [1, 2]) == (
        [None, TokenChoice(2)],
        {1: SequenceFault("nine", of_request=True)},
    )


def test_nothing_left_fails_the_sequence() -> None:
    assert One(3, min_tokens=1, guide=Letters(END)).fault(0, 1, 2) == (
        "no token is left that may come next"
    )
