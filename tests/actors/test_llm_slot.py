"""One request for text, from the tokens of its prompt to the end of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.llm import (
    LETTERS,
    STEP_S,
    TOKEN_S,
    FakeLlm,
    FakeLlmBackend,
    LlmServed,
    alone,
    llm_request,
    serving_llm,
)
from tests.support.traces import Traces, setting
from tritrio.actors._llm_preparation import (
    PROMPT_CHARACTERS_PER_TOKEN_MAX,
    PROMPT_INLINE_CHARACTERS_MAX,
)
from tritrio.actors.llm_engine import LOOK_AHEAD
from tritrio.backends.llm.steps import SequenceFault, StepPlan
from tritrio.protocol.errors import ErrorCode, FailureReason, PromptTooLongError, RequestError
from tritrio.protocol.llm_statistics import CancelReason
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import RequestedOutput
from tritrio.protocol.sampling_params import SamplingParams
from tritrio.protocol.tensors import Tensor
from tritrio.protocol.trace import Stamp

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def refused(served: LlmServed, prompt: str, **more: Any) -> str:
    """Ask what is refused; returns why."""
    reader = await served.submit(llm_request(prompt, **more)).read()
    assert reader.error is not None
    assert reader.error.code is ErrorCode.INVALID_ARG
    assert served.gauges == (0, 0, 0)
    return reader.error.message


async def test_without_a_stream_there_is_one_response(autojump_clock: MockClock) -> None:
    async with serving_llm() as served:
        reader = await served.submit_and_read("abc", stream=False, exclude_input=True)
        assert [choice.text for choice in reader.choices[0]] == [alone("abc", 8)]
        assert (len(reader.at_s), reader.finish) == (1, "length")
        assert reader.choices[0][0].output_tokens == 8
        assert reader.at_s == [8 * STEP_S + 3 * TOKEN_S]


async def test_a_prompt_is_returned_before_the_text_if_it_is_not_excluded(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm() as served:
        for prompt in ("abc", b"\x03\x02\x01"):
            request = llm_request("abc", stream=False, exclude_input=False)
            if isinstance(prompt, bytes):
                del request.inputs["text_input"]
                tokens = np.frombuffer(prompt, np.uint8).astype(np.int64)
                request.inputs["input_ids"] = Tensor("input_ids", "INT64", (3,), array=tokens)
            reader = await served.submit(request).read()
            text = "abc" if isinstance(prompt, str) else "cba"
            assert reader.text == text + alone(text, 8)


async def test_the_model_says_what_counts_where_the_request_says_nothing(
    autojump_clock: MockClock,
) -> None:
    backend = FakeLlmBackend()

    def recommend(model: FakeLlm) -> None:
        model.sampling_defaults = SamplingParams(seed=0, max_tokens=3, top_p=0.5)

    backend.at_load = recommend
    async with serving_llm(backend=backend) as served:
        request = llm_request("abc")
        del request.inputs["sampling_parameters"]
        assert (await served.submit(request).read()).text == alone("abc", 3, ends=True)
        sampling = {"max_tokens": 5, "top_p": 1}
        assert (await served.submit_and_read("abc", sampling=sampling)).text == alone("abc", 5)
        params = [start.params for plan in served.llm.plans for start in plan.joins]
        assert [each.top_p for each in params] == [0.5, 1.0]


async def test_an_end_token_ends_a_text_and_is_no_part_of_it(autojump_clock: MockClock) -> None:
    async with serving_llm() as served:
        sampling = {"ignore_eos": False, "max_tokens": 200}
        reader = await served.submit_and_read("ab", sampling=sampling)
        text = alone("ab", 200, ends=True)
        assert reader.text == text
        assert 0 < len(text) < 200
        assert reader.finish == "stop"
        counts = [choice.output_tokens for (choice,) in reader.choices]
        assert sum(counts) == len(text) + 1


async def test_a_stop_text_over_several_tokens_ends_a_text_and_frees_its_row(
    autojump_clock: MockClock,
) -> None:
    whole = alone("abc", 60)
    stop = whole[20:23]
    assert whole.index(stop) == 20
    async with serving_llm(rows=1) as served:
        sampling = {"max_tokens": 60, "stop": [stop]}
        reader = served.ask("abc", sampling=sampling)
        await wait_all_tasks_blocked()
        following = served.ask("z", sampling={"max_tokens": 1})
        await trio.sleep(2)
        assert (reader.text, reader.finish) == (whole[:20], "stop")
        # Nothing of what may be the stop text was sent, and the next step is another's.
        stopped_s = 23 * STEP_S + 3 * TOKEN_S
        assert reader.at_s[-1] == stopped_s
        assert following.at_s == [stopped_s + STEP_S + TOKEN_S]
        included = await served.submit_and_read(
            "abc", sampling=sampling | {"include_stop_str_in_output": True}
        )
        assert included.text == whole[:23]


async def test_characters_of_several_tokens_are_sent_whole(autojump_clock: MockClock) -> None:
    text = alone(".c", 200)
    async with serving_llm() as served:
        reader = await served.submit_and_read(".c", sampling={"max_tokens": 200})
        assert reader.text == text
        assert "é" in text
        assert sum(choice.output_tokens for (choice,) in reader.choices) == 200


async def test_n_texts_have_seeds_of_their_own(autojump_clock: MockClock) -> None:
    sampling = {"n": 3, "temperature": 1.0, "seed": 7}
    expected = [alone("abc", 8, seed=seed) for seed in (7, 8, 9)]
    async with serving_llm(rows=2) as served:
        streamed = await served.submit_and_read("abc", sampling=sampling)
        assert streamed.texts == expected
        whole = await served.submit_and_read("abc", stream=False, sampling=sampling)
        assert [text.removeprefix("abc") for text in whole.texts] == expected
        assert [choice.finish_reason for choice in whole.choices[0]] == ["length"] * 3
        assert served.statistics.success.count == 2
        assert served.gauges == (0, 0, 0)


async def test_log_probabilities_come_with_the_text_of_their_tokens(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm() as served:
        reader = await served.submit_and_read(
            "abc", sampling={"logprobs": 1, "max_tokens": 3}, logprobs=True, cumulative_logprob=True
        )
        places = [place for (choice,) in reader.choices for place in choice.logprobs or ()]
        assert "".join(place.chosen.text for place in places) == reader.text
        assert [place.chosen.logprob for place in places] == [-0.5] * 3
        assert [choice.cumulative_logprob for (choice,) in reader.choices] == [-0.5, -1.0, -1.5]
        summed = await served.submit_and_read("abc", stream=False, cumulative_logprob=True)
        assert summed.choices[0][0].cumulative_logprob == -4.0


async def test_only_the_outputs_that_were_asked_for_are_sent(autojump_clock: MockClock) -> None:
    async with serving_llm() as served:
        request = llm_request("abc", stream=False)
        request.outputs = (RequestedOutput("text_output"),)
        response = await served.submit(request).reply.receive()
        assert [output.name for output in response.outputs] == ["text_output"]


async def test_what_cannot_be_generated_is_refused_with_the_reason(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(tokens_per_row=64) as served:
        assert "at least one token" in await refused(served, "")
        for characters, why in ((64, "64"), (50_000, "50000 characters")):
            reader = await served.submit_and_read("a" * characters)
            assert isinstance(reader.error, PromptTooLongError)
            assert reader.error.__traceback__ is None  # it would hold the prompt
            assert why in reader.error.message
            assert served.gauges == (0, 0, 0)
        assert "temperature" in await refused(served, "a", sampling={"temperature": -1})
        request = llm_request("a")
        request.inputs["sampling_parameters"].array[0] = b"{"
        reader = await served.submit(request).read()
        assert reader.error is not None
        assert reader.error.code is ErrorCode.INVALID_ARG
        guided = await served.submit(
            llm_request("a", sampling={"guided_decoding": {"regex": "("}})
        ).read()
        assert guided.error is not None
        assert guided.error.code in {ErrorCode.UNSUPPORTED, ErrorCode.INVALID_ARG}
        for tokens, kind, why in (
            (range(100), PromptTooLongError, "at most 64 tokens, got 100"),
            ((1, 99), RequestError, "got 99"),
        ):
            request = llm_request("a")
            del request.inputs["text_input"]
            array = np.array(tokens, np.int64)
            request.inputs["input_ids"] = Tensor("input_ids", "INT64", array.shape, array=array)
            reader = await served.submit(request).read()
            assert type(reader.error) is kind
            assert reader.error.code is ErrorCode.INVALID_ARG
            assert why in reader.error.message
        assert served.statistics.fail.count == 8
        assert served.statistics.llm.failed == 0  # none of them was a text
        later = await served.submit_and_read("c")
        assert later.text == alone("c", 8)


async def test_a_text_that_cannot_fit_is_refused_before_it_is_read(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(tokens_per_row=64) as served:
        size = 64 * PROMPT_CHARACTERS_PER_TOKEN_MAX * 4
        for extra, why in ((0, "must be UTF-8"), (1, "64 tokens, got one of at least 16385 char")):
            request = llm_request("a")
            request.inputs["text_input"].array[0] = b"\xff" * (size + extra)
            reader = await served.submit(request).read()
            assert reader.error is not None
            assert why in reader.error.message
            assert isinstance(reader.error, PromptTooLongError) == (extra > 0)


async def test_a_prompt_of_tokens_that_the_model_does_not_have_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(vocabulary_size=10) as served:
        assert "tokens below 10" in await refused(served, "az")
        assert "tokens below 10" in await refused(served, "a", sampling={"stop_token_ids": [10]})
        assert (await served.submit_and_read("a")).error is None


async def slowly(job: Callable[[*Ts], T], /, *args: *Ts) -> T:
    """Do what takes a second on a thread."""
    await trio.sleep(1)
    return job(*args)


BIG = "a" * (PROMPT_INLINE_CHARACTERS_MAX + 1)


async def test_a_big_prompt_becomes_tokens_while_others_are_generated(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(
        text_in_thread=slowly,
        tokens_per_row=4096,
        step_tokens=4096,
        kv_budget_bytes=10 * 4 * 4096,
    ) as served:
        reader = served.ask(BIG, sampling={"max_tokens": 2})
        await wait_all_tasks_blocked()
        other = await served.submit_and_read("b", sampling={"max_tokens": 2})
        assert other.ended_s == 2 * STEP_S + TOKEN_S
        await trio.sleep(10)
        assert reader.at_s[0] == 1 + STEP_S + len(BIG) * TOKEN_S
        assert reader.text == alone(BIG, 2)


async def test_a_request_may_end_while_its_prompt_becomes_tokens(
    autojump_clock: MockClock,
) -> None:
    async with serving_llm(text_in_thread=slowly, tokens_per_row=4096) as served:
        leaver = served.submit(llm_request(BIG))
        late = llm_request(BIG)
        late.timeout_us = 250_000
        reader = served.submit(late)
        await trio.sleep(0.125)
        leaver.reply.close()
        assert served.statistics.failures[FailureReason.CANCELED] == 1
        await reader.read()
        assert reader.error is not None
        assert reader.ended_s == 0.25
        await trio.sleep(2)
        assert not served.llm.plans
        served.submit(llm_request(BIG))
        await trio.sleep(0.125)
        served.stop_soon(0.125)
        await trio.sleep(2)
        assert served.statistics.llm.cancelled[CancelReason.SHUTDOWN] == 1


async def test_what_texts_are_held_to_is_compiled_for_the_sampler(
    autojump_clock: MockClock,
) -> None:
    pytest.importorskip("llguidance", reason="the package llguidance is not installed")
    async with serving_llm() as served:
        await served.submit_and_read("a", sampling={"guided_decoding": {"choice": ["ab", "cd"]}})
        [start] = served.llm.plans[0].joins
        assert start.guide is not None
        allowed = start.guide.start().allowed_mask()
        assert [LETTERS[token - 1] for token in np.flatnonzero(allowed)] == ["a", "c"]


async def test_a_tokenizer_that_fails_costs_its_request_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_llm() as served:
        reader = served.submit(llm_request("Ö"))  # which the letters do not have
        await reader.read()
        assert reader.error is not None
        assert reader.error.code is ErrorCode.INTERNAL
        assert served.gauges == (0, 0, 0)
        assert (await served.submit_and_read("c")).text == alone("c", 8)


async def test_a_queue_timeout_counts_until_the_admission(autojump_clock: MockClock) -> None:
    async with serving_llm(rows=1) as served:
        first = served.ask("a", sampling={"max_tokens": 100})
        await wait_all_tasks_blocked()
        request = llm_request("b")
        request.timeout_us = 250_000
        waiting = await served.submit(request).read()
        assert waiting.error is not None
        assert waiting.error.code is ErrorCode.UNAVAILABLE
        assert "timed out in the queue after 250.0 ms" in waiting.error.message
        assert waiting.ended_s == 0.25
        statistics = served.statistics
        assert statistics.failures[FailureReason.REJECTED] == 1
        assert statistics.llm.cancelled[CancelReason.QUEUE_TIMEOUT] == 1
        await trio.sleep(2)
        assert first.text == alone("a", 100)
        request = llm_request("b", sampling={"max_tokens": 100})
        request.timeout_us = 250_000  # for what takes longer, and begins at once
        assert (await served.submit(request).read()).text == alone("b", 100)


@pytest.mark.parametrize(
    ("of_request", "code"), [(False, ErrorCode.INTERNAL), (True, ErrorCode.INVALID_ARG)]
)
async def test_a_fault_of_one_text_fails_its_request_alone(
    autojump_clock: MockClock, of_request: bool, code: ErrorCode
) -> None:
    async with serving_llm() as served:
        real = FakeLlm.step
        fault = SequenceFault("no token is allowed", of_request=of_request)

        def step(plan: StepPlan) -> Any:
            result = real(served.llm, plan)
            if len(served.llm.plans) == 4:
                first = plan.decodes[0].sequence_id
                choices = {key: each for key, each in result.choices.items() if key != first}
                return type(result)(choices=choices, faults={first: fault})
            return result

        served.llm.step = step  # type: ignore[method-assign]
        lost = served.ask("a", sampling={"n": 2, "temperature": 1.0})
        await wait_all_tasks_blocked()
        other = served.ask("b")
        await trio.sleep(1)
        assert lost.error is not None
        assert lost.error.code is code
        assert "no token is allowed" in lost.error.message
        assert other.text == alone("b", 8)
        assert served.gauges == (0, 0, 0)
        assert served.statistics.llm.failed == 2


async def test_traces_tell_of_the_time_from_the_admission_to_the_end(
    autojump_clock: MockClock,
) -> None:
    traces = Traces(setting())
    async with serving_llm() as served:
        request, leaving = llm_request("a", sampling={"max_tokens": 2}), llm_request("b")
        request.trace, leaving.trace = traces.new(), traces.new()
        await served.submit(request).read()
        leaver = served.submit(leaving)
        await trio.sleep(2 * STEP_S)
        leaver.reply.close()
        request.trace.release()
        leaving.trace.release()
        assert not traces.open
        names = [
            [event.name for event in trace.events if isinstance(event, Stamp)]
            for trace in traces.ended
        ]
        computed = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
        assert [name for name in names[0] if name.startswith("COMPUTE")] == computed
        assert names[0].count("INFER_RESPONSE_COMPLETE") == 1
        assert computed[0] in names[1]


async def test_a_queue_policy_limits_what_waits(autojump_clock: MockClock) -> None:
    policy = pb.ModelQueuePolicy(max_queue_size=2)
    config = pb.ModelConfig(dynamic_batching=pb.ModelDynamicBatching(default_queue_policy=policy))
    async with serving_llm(rows=1, config=config) as served:
        readers = []
        for _ in range(1 + LOOK_AHEAD + 4):
            readers.append(served.ask("a"))
            await wait_all_tasks_blocked()
        refused = [reader for reader in readers if reader.error is not None]
        assert len(refused) == 2
        await trio.sleep(2)
        assert sum(reader.finish == "length" for reader in readers if reader.choices) == 5
