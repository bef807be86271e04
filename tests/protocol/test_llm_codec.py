"""Requests for text and their responses, as tensors and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.llm_codec import (
    SAMPLING_BYTES_MAX,
    llm_outputs,
    llm_request_inputs,
    read_llm_outputs,
    read_llm_request,
)
from tritrio.protocol.llm_tensors import (
    OUTPUTS,
    LlmChoice,
    LlmRequest,
    LlmToken,
    TokenLogprobs,
    text_tensor,
)
from tritrio.protocol.requests import InferRequest
from tritrio.protocol.tensors import Tensor


def flag(name: str, value: bool) -> Tensor:
    return Tensor(name, "BOOL", (1,), array=np.array([value]))


def ids(*tokens: int) -> Tensor:
    return Tensor("input_ids", "INT64", (len(tokens),), array=np.array(tokens, np.int64))


def raw_text(name: str, data: bytes) -> Tensor:
    return Tensor(name, "BYTES", (1,), raw=len(data).to_bytes(4, "little") + data)


def request(*inputs: Tensor, **parameters: Any) -> InferRequest:
    made = InferRequest("m")
    made.inputs = {tensor.name: tensor for tensor in inputs}
    made.parameters = parameters
    return made


def refusal(*inputs: Tensor) -> str:
    with pytest.raises(RequestError) as caught:
        read_llm_request(request(*inputs))
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


TEXT = text_tensor("text_input", ["Hëllo"])
EVERYTHING = LlmRequest(
    finish_reason=True,
    cumulative_logprob=True,
    logprobs=True,
    num_input_tokens=True,
    num_output_tokens=True,
)


def test_a_prompt_alone_asks_for_one_response_that_begins_with_it() -> None:
    assert read_llm_request(request(TEXT)) == LlmRequest(text="Hëllo")


def test_a_prompt_may_be_tokens() -> None:
    assert read_llm_request(request(ids(5, 6))) == LlmRequest(tokens=(5, 6))


def test_every_input_is_read() -> None:
    got = read_llm_request(
        request(
            TEXT,
            flag("stream", True),
            flag("exclude_input_in_output", True),
            text_tensor("sampling_parameters", ['{"temperature": 0.5, "stop": ["x"]}']),
            flag("return_finish_reason", True),
            flag("return_cumulative_logprob", True),
            flag("return_logprobs", True),
            flag("return_num_input_tokens", True),
            flag("return_num_output_tokens", True),
        )
    )
    assert got == LlmRequest(
        text="Hëllo",
        stream=True,
        sampling={"temperature": 0.5, "stop": ["x"]},
        exclude_input=True,
        finish_reason=True,
        cumulative_logprob=True,
        logprobs=True,
        num_input_tokens=True,
        num_output_tokens=True,
    )


def test_one_prompt_is_needed() -> None:
    assert refusal() == (
        "expected the prompt as one of the inputs 'text_input' and 'input_ids', got neither"
    )
    assert refusal(TEXT, ids(1)).endswith("got both")


def test_a_stream_goes_without_the_prompt() -> None:
    assert read_llm_request(request(TEXT, flag("stream", True))).exclude_input
    assert "'exclude_input_in_output' must be true or absent, got false" in refusal(
        TEXT, flag("stream", True), flag("exclude_input_in_output", False)
    )


def test_a_prompt_that_is_no_text_is_refused() -> None:
    assert refusal(raw_text("text_input", b"a\xff")) == (
        "input 'text_input' must be UTF-8, got another byte at 1 of 2"
    )


def test_tokens_that_are_none_are_refused() -> None:
    assert refusal(ids()) == "input 'input_ids' must have at least one token, got none"
    assert refusal(ids(3, -1)) == "input 'input_ids' must have tokens >= 0, got -1"


@pytest.mark.parametrize("document", ["[1]", "nonsense", "", '"x"', '{"n": 1, "n": 2}'])
def test_sampling_parameters_that_are_no_object_are_refused(document: str) -> None:
    message = refusal(TEXT, text_tensor("sampling_parameters", [document]))
    assert message.startswith(("input 'sampling_parameters' is not valid JSON", "a JSON object"))


def test_sampling_parameters_of_any_size_are_not_read() -> None:
    document = '{"stop": "' + "a" * SAMPLING_BYTES_MAX + '"}'
    assert refusal(TEXT, text_tensor("sampling_parameters", [document])) == (
        f"input 'sampling_parameters' may have 1048576 bytes, got {len(document)}"
    )


def test_inputs_of_another_form_are_refused() -> None:
    assert refusal(text_tensor("text_input", ["a", "b"])) == (
        "input 'text_input' must have one element, got shape [2]"
    )
    assert refusal(TEXT, text_tensor("stream", ["true"])) == (
        "input 'stream' must be BOOL, got 'BYTES'"
    )


def test_request_parameters_with_the_names_of_sampling_parameters_are_some() -> None:
    got = read_llm_request(request(TEXT, id="7", temperature=0.5, max_tokens=3, authorization="x"))
    assert got.sampling == {"temperature": 0.5, "max_tokens": 3}


def test_the_input_counts_where_a_request_parameter_says_otherwise() -> None:
    sampling = text_tensor("sampling_parameters", ['{"temperature": 0}'])
    got = read_llm_request(request(TEXT, sampling, temperature=0.5, max_tokens=3))
    assert got.sampling == {"temperature": 0, "max_tokens": 3}


@given(
    st.builds(
        LlmRequest,
        text=st.text(),
        stream=st.just(False),
        sampling=st.dictionaries(st.text(), st.integers(0, 9) | st.text()),
        exclude_input=st.booleans(),
        finish_reason=st.booleans(),
        cumulative_logprob=st.booleans(),
        logprobs=st.booleans(),
        num_input_tokens=st.booleans(),
        num_output_tokens=st.booleans(),
    )
    | st.builds(
        LlmRequest,
        tokens=st.lists(st.integers(0, 2**63 - 1), min_size=1).map(tuple),
        stream=st.just(True),
        exclude_input=st.just(True),
    )
)
def test_inputs_made_for_a_request_are_read_as_it(asked: LlmRequest) -> None:
    inputs = llm_request_inputs(asked)
    assert [name for name, tensor in inputs.items() if tensor.name != name] == []
    assert read_llm_request(request(*inputs.values())) == asked


def test_only_the_text_is_returned_unasked() -> None:
    (output,) = llm_outputs(LlmRequest(), [LlmChoice(text="a"), LlmChoice(text="b")], 3)
    assert (output.name, output.shape, output.array.tolist()) == ("text_output", (2,), [b"a", b"b"])


def test_what_is_asked_for_is_returned_with_its_declared_type() -> None:
    choices = [
        LlmChoice(text="a", output_tokens=1, cumulative_logprob=-0.5),
        LlmChoice(text="b", finish_reason="stop", output_tokens=2, cumulative_logprob=-1.0),
    ]
    outputs = llm_outputs(EVERYTHING, choices, 3)
    assert [(each.name, each.datatype) for each in outputs] == [
        (name, datatype) for name, datatype, _ in OUTPUTS
    ]
    assert {each.name: each.array.tolist() for each in outputs} == {
        "text_output": [b"a", b"b"],
        "finish_reason": [b"None", b"stop"],
        "cumulative_logprob": [-0.5, -1.0],
        "logprobs": [b"null", b"null"],
        "num_input_tokens": [3],
        "num_output_tokens": [1, 2],
    }


def test_log_probabilities_are_objects_by_token() -> None:
    chosen = LlmToken(9, "\ufffd", -2.0, 3, b"\xe2")
    best = LlmToken(4, "é", -0.5, 1, "é".encode())
    choice = LlmChoice(text="", logprobs=[TokenLogprobs(chosen, (best,))])
    output = llm_outputs(LlmRequest(logprobs=True), [choice], 1)[1]
    assert json.loads(output.array[0]) == [
        {
            "9": {"logprob": -2.0, "rank": 3, "decoded_token": "\ufffd", "bytes": [0xE2]},
            "4": {"logprob": -0.5, "rank": 1, "decoded_token": "é"},
        }
    ]


TOKENS = st.builds(
    LlmToken,
    st.integers(0, 20),
    st.text(max_size=3),
    st.floats(max_value=0),
    st.integers(1, 20),
    st.binary(max_size=4),
)


@st.composite
def places(draw: st.DrawFn) -> TokenLogprobs:
    top = draw(st.lists(TOKENS, unique_by=lambda token: token.id, max_size=4))
    others = [token.id for token in top]
    chosen = draw(TOKENS.filter(lambda token: token.id not in others) | st.sampled_from(top or [X]))
    return TokenLogprobs(chosen, tuple(top))


X = LlmToken(21, "x", -1.0, 1, b"x")


@given(st.lists(st.none() | st.lists(places(), max_size=3), min_size=1, max_size=3))
def test_outputs_are_read_as_what_they_were_made_of(logprobs: Any) -> None:
    choices = [
        LlmChoice(
            text="ä", finish_reason=None, output_tokens=2, cumulative_logprob=-1.5, logprobs=x
        )
        for x in logprobs
    ]
    assert read_llm_outputs(llm_outputs(EVERYTHING, choices, 7)) == (choices, 7)


def test_outputs_without_what_was_not_asked_for_are_read() -> None:
    choices = [LlmChoice(text="a")]
    assert read_llm_outputs(llm_outputs(LlmRequest(), choices, 7)) == (choices, None)


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [text_tensor("other", ["a"])],
        [text_tensor("text_output", ["a", "b"]), text_tensor("finish_reason", ["stop"])],
        [text_tensor("text_output", ["a"]), text_tensor("logprobs", ["{"])],
        [text_tensor("text_output", ["a"]), text_tensor("logprobs", ["[{}]"])],
        [text_tensor("text_output", ["a"]), text_tensor("logprobs", ["[3]"])],
    ],
)
def test_other_outputs_are_the_fault_of_the_model(outputs: list[Tensor]) -> None:
    with pytest.raises(RequestError, match="expected 'text_output' and what belongs") as caught:
        read_llm_outputs(outputs)
    assert caught.value.code is ErrorCode.INTERNAL
