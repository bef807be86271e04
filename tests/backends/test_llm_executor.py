"""What an instance does in its steps, with a tiny model of random weights in ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.builders import request_of
from tests.backends.generating import GREEDY, Generating, open_instance
from tests.backends.tiny_causal import CONTEXT, TOKEN_BYTES, VOCABULARY, write_tiny
from tritrio.backends.base import Batch
from tritrio.backends.llm.executor import LlmInstance
from tritrio.backends.llm.steps import (
    EngineLimits,
    GeneratesTokens,
    GuideFaultError,
    Prefill,
    RowCopy,
    RowSwap,
    SequenceFault,
    SequenceStart,
    StepPlan,
)
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.tensors import Array

STEPS = 12
PROMPTS = ([5, 9, 33, 2, 41, 17, 8], [60, 1], [22, 22, 7, 50, 13, 3, 3, 19, 44, 28, 6])


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlmInstance]:
    instance = open_instance(write_tiny(tmp_path_factory.mktemp("tiny")))
    yield instance
    instance.unload()


@pytest.fixture
def generating(instance: LlmInstance) -> Generating:
    instance.step(StepPlan(leaves=tuple(range(len(PROMPTS)))))
    return Generating(instance)


@pytest.fixture(scope="module")
def alone(instance: LlmInstance) -> list[list[int]]:
    """What each prompt gives by itself, in row 0, read as a whole."""
    texts = []
    for number, prompt in enumerate(PROMPTS, 100):
        generating = Generating(instance)
        generating.start(number, 0, prompt)
        generating.go_on(number, steps=STEPS - 1)
        texts.append(generating.text(number))
    assert all(len(set(text)) > STEPS // 2 for text in texts), "a text that shows what is wrong"
    return texts


def test_an_instance_says_what_it_can_do(instance: LlmInstance) -> None:
    assert isinstance(instance, GeneratesTokens)
    assert instance.limits == EngineLimits(
        rows=8,
        tokens_per_row=CONTEXT,
        step_tokens=64,
        kv_bytes_per_token=TOKEN_BYTES,
        kv_budget_bytes=8 * CONTEXT * TOKEN_BYTES,
        end_tokens=frozenset(),
        prefix_caching=True,
        contiguous=True,
        vocabulary_size=VOCABULARY,
        prefill_tokens_min=2,
    )
    assert instance.text.encode("w3 w1") == [3, 1]


@pytest.mark.parametrize("parts", [(1,), (1, 1, 1, 1, 1, 1), (3, 3), (6,), (2, 4)])
def test_a_prompt_read_in_parts_is_as_one_read_at_once(
    generating: Generating, alone: list[list[int]], parts: tuple[int, ...]
) -> None:
    generating.start(0, 3, PROMPTS[0], *parts)
    generating.go_on(0, steps=STEPS - 1)
    assert generating.text(0) == alone[0]


def test_only_the_last_part_of_a_prompt_gives_a_token(generating: Generating) -> None:
    joins = generating.join(0, 0, PROMPTS[0])
    result = generating.step(joins=joins, prefills=(generating.prefill(0, 3),))
    assert result.choices == {}
    result = generating.step(prefills=(generating.prefill(0),))
    assert list(result.choices) == [0]


@pytest.mark.parametrize("rows", [(0, 1, 2), (2, 0, 1), (0, 3, 7)])
def test_rows_of_any_length_go_on_as_each_alone(
    generating: Generating, alone: list[list[int]], rows: tuple[int, ...]
) -> None:
    for number, row in enumerate(rows):
        generating.start(number, row, PROMPTS[number])
    generating.go_on(0, 1, 2, steps=STEPS - 1)
    assert [generating.text(number) for number in range(3)] == alone


def test_sequences_join_and_leave_while_others_go_on(
    generating: Generating, alone: list[list[int]]
) -> None:
    generating.start(0, 1, PROMPTS[0])
    generating.go_on(0, steps=3)
    generating.start(1, 0, PROMPTS[1])
    generating.go_on(0, 1, steps=4)
    joins = generating.join(2, 2, PROMPTS[2])
    decodes, idle_rows = generating.decodes(0, 1)
    parts = (generating.prefill(2, 5), generating.prefill(2))
    generating.step(joins=joins, decodes=decodes, idle_rows=idle_rows, prefills=parts)
    generating.go_on(0, 1, 2, steps=STEPS - 9)
    generating.go_on(1, 2, steps=3)  # the first one stands between them
    generating.go_on(2, steps=5)
    assert [generating.text(number) for number in range(3)] == alone


def test_idle_rows_keep_their_state(generating: Generating, alone: list[list[int]]) -> None:
    generating.start(0, 0, PROMPTS[0])
    generating.start(1, 1, PROMPTS[1])
    generating.start(2, 2, PROMPTS[2])
    generating.go_on(2, steps=STEPS - 1)
    generating.go_on(1, steps=STEPS - 1)
    generating.go_on(0, steps=STEPS - 1)
    assert [generating.text(number) for number in range(3)] == alone


def test_a_prompt_in_part_is_kept_while_its_row_is_idle(
    generating: Generating, alone: list[list[int]]
) -> None:
    joins = generating.join(0, 0, PROMPTS[0])
    generating.step(joins=joins, prefills=(generating.prefill(0, 4),))
    generating.start(1, 1, PROMPTS[1])
    generating.go_on(1, steps=STEPS - 1)
    generating.step(prefills=(generating.prefill(0),))
    generating.go_on(0, steps=STEPS - 1)
    assert [generating.text(number) for number in range(2)] == alone[:2]


def test_a_row_goes_on_from_the_copy_of_another(
    generating: Generating, alone: list[list[int]]
) -> None:
    shared = 6
    generating.start(0, 4, [*PROMPTS[0][:shared], 1, 2, 3])
    generating.go_on(0, steps=5)
    joins = generating.join(1, 1, PROMPTS[0], cached=shared)
    copies = (RowCopy(source=4, target=1, tokens=shared),)
    generating.step(joins=joins, copies=copies, prefills=(generating.prefill(1),))
    generating.go_on(0, 1, steps=STEPS - 1)
    assert generating.text(1) == alone[0]


def test_rows_that_change_places_go_on(generating: Generating, alone: list[list[int]]) -> None:
    generating.start(0, 0, PROMPTS[0])
    generating.start(2, 5, PROMPTS[2])
    generating.go_on(0, 2, steps=4)
    swaps = (RowSwap(0, 5, generating.past[0], generating.past[2]),)
    generating.row = {0: 5, 2: 0}
    decodes, idle_rows = generating.decodes(0, 2)
    generating.step(swaps=swaps, decodes=decodes, idle_rows=idle_rows)
    generating.go_on(0, 2, steps=STEPS - 6)
    assert [generating.text(0), generating.text(2)] == [alone[0], alone[2]]


def test_a_row_is_used_to_its_last_token(generating: Generating) -> None:
    prompt = [token % VOCABULARY for token in range(CONTEXT - 3)]
    generating.start(0, 0, prompt)
    generating.start(1, 1, [1])
    generating.go_on(0, 1)
    generating.go_on(1, steps=3)  # writes behind the last but one token of row 0
    generating.go_on(0)
    whole = Generating(generating.instance)
    whole.start(2, 2, generating.tokens[0][:-1])
    assert generating.past[0] == CONTEXT - 1
    assert generating.text(0)[-1] == whole.text(2)[0]


def test_a_sequence_that_cannot_go_on_says_why_and_the_others_go_on(
    generating: Generating,
) -> None:
    generating.start(0, 0, PROMPTS[0])
    guided = SequenceStart(id=1, prompt=(1,), params=GREEDY, seed=0, guide=_Nothing())
    generating.row[1], generating.past[1] = 1, 1
    decodes, _ = generating.decodes(0)
    prefills = (Prefill(1, 1, (1,), 0, samples=True),)
    result = generating.step(joins=(guided,), decodes=decodes, prefills=prefills)
    assert list(result.choices) == [0]
    assert result.faults == {1: SequenceFault("no token is left", of_request=True)}


class _Nothing:
    """A guide that allows no token."""

    is_complete = False

    def start(self) -> _Nothing:
        return self

    def allowed_mask(self) -> Array:
        raise GuideFaultError("no token is left")

    def advance(self, token: int) -> None:
        raise AssertionError(token)


def test_times_of_a_step_are_apart(generating: Generating) -> None:
    joins = generating.join(0, 0, PROMPTS[0])
    result = generating.step(joins=joins, prefills=(generating.prefill(0, 1),))
    assert result.prefill_ns > 0
    assert (result.decode_ns, result.sample_ns) == (0, 0)
    result = generating.step(prefills=(generating.prefill(0),))
    assert result.sample_ns > 0
    decodes, idle_rows = generating.decodes(0)
    result = generating.step(decodes=decodes, idle_rows=idle_rows)
    assert result.decode_ns > 0
    assert result.prefill_ns == 0
    result = generating.instance.step(StepPlan(leaves=(0,)))
    assert (result.prefill_ns, result.decode_ns, result.sample_ns) == (0, 0, 0)


def test_a_prompt_that_the_model_cannot_read_fails_alone(
    generating: Generating, alone: list[list[int]], capfd: pytest.CaptureFixture[str]
) -> None:
    generating.start(0, 0, PROMPTS[0])
    broken = SequenceStart(id=1, prompt=(VOCABULARY,), params=GREEDY, seed=0)
    joins = (broken, *generating.join(2, 2, PROMPTS[2]))
    generating.row[1], generating.past[1] = 1, 0
    decodes, idle_rows = generating.decodes(0)
    bad = Prefill(1, 1, (VOCABULARY,), 0, samples=True)
    result = generating.step(
        joins=joins,
        decodes=decodes,
        idle_rows=idle_rows,
        prefills=(bad, generating.prefill(2)),
    )
    assert list(result.faults) == [1]
    assert re.fullmatch(r"model 'm': ONNX Runtime failed: .*Gather.*", result.faults[1].reason)
    assert "Gather" in capfd.readouterr().err
    generating.go_on(0, 2, steps=STEPS - 2)
    assert generating.text(0) == alone[0]
    assert generating.text(2) == alone[2][: STEPS - 1]


def test_a_step_that_the_model_cannot_do_fails_and_the_next_one_does_not(
    generating: Generating, alone: list[list[int]], capfd: pytest.CaptureFixture[str]
) -> None:
    generating.start(0, 0, PROMPTS[0])
    generating.tokens[0].append(VOCABULARY)
    with pytest.raises(RequestError, match=r"model 'm': ONNX Runtime failed: .*Gather"):
        generating.go_on(0)
    assert "Gather" in capfd.readouterr().err
    generating.instance.step(StepPlan(leaves=(0,)))
    generating.start(0, 0, PROMPTS[0])
    generating.go_on(0, steps=STEPS - 1)
    assert generating.text(0) == alone[0]


def test_a_batch_is_refused(instance: LlmInstance) -> None:
    with pytest.raises(RequestError) as caught:
        instance.execute(Batch([request_of()]))
    assert caught.value.code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize(
    "form", [{"masked": True}, {"all_logits": True}, {"state": "kv.%d."}], ids=str
)
def test_graphs_of_other_forms_give_the_same(
    tmp_path: Path, alone: list[list[int]], form: dict[str, Any]
) -> None:
    names = '{"tensors": {"past_key": "kv.%d.key", "past_value": "kv.%d.value"}}'
    source = write_tiny(tmp_path, **form, settings=names if "state" in form else "{}")
    generating = Generating(open_instance(source))
    generating.start(0, 1, PROMPTS[0], 3)
    generating.start(2, 0, PROMPTS[2])
    generating.go_on(0, 2, steps=STEPS - 1)
    assert [generating.text(0), generating.text(2)] == [alone[0], alone[2]]
