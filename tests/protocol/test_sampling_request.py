"""Sampling parameters from clients: what is taken, what is refused and with which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.sampling_params import Guide, GuideKind, SamplingParams
from tritrio.protocol.sampling_request import STRUCTURE_CHARACTERS_MAX, parse_sampling_params


def refusal(**document: Any) -> str:
    with pytest.raises(RequestError) as caught:
        parse_sampling_params(document, vocabulary_size=100)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


def test_nothing_gives_the_defaults() -> None:
    assert parse_sampling_params({}) == SamplingParams()
    assert SamplingParams().max_tokens == 16


def test_what_is_not_said_is_as_the_model_wants_it() -> None:
    defaults = SamplingParams(temperature=0.2, top_p=0.9, max_tokens=100)
    given = {"top_p": 1, "temperature": None, "min_tokens": 50}
    assert parse_sampling_params(given, defaults=defaults) == SamplingParams(
        temperature=0.2, top_p=1.0, max_tokens=100, min_tokens=50
    )
    assert parse_sampling_params({"max_tokens": None}, defaults=defaults).max_tokens is None


def test_every_parameter_is_read() -> None:
    params = parse_sampling_params(
        {
            "n": 2,
            "temperature": 0,
            "top_k": 40,
            "top_p": 0.9,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "presence_penalty": -2,
            "frequency_penalty": 2.0,
            "seed": -(2**63),
            "logit_bias": {"7": -100, "8": 1.5},
            "logprobs": 20,
            "stop": ["a", "b"],
            "stop_token_ids": [3, 4, 3],
            "include_stop_str_in_output": True,
            "ignore_eos": True,
            "max_tokens": None,
            "min_tokens": 5,
            "skip_special_tokens": False,
            "guided_decoding": {"regex": "a+"},
        },
        vocabulary_size=9,
    )
    assert params == SamplingParams(
        n=2,
        temperature=0.0,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        seed=-(2**63),
        logit_bias={7: -100.0, 8: 1.5},
        logprobs=20,
        stop=("a", "b"),
        stop_token_ids=(3, 4),
        include_stop_str_in_output=True,
        ignore_eos=True,
        max_tokens=None,
        min_tokens=5,
        skip_special_tokens=False,
        guide=Guide(GuideKind.REGEX, "a+"),
    )


def test_null_is_the_default_but_no_limit_for_max_tokens() -> None:
    document = {"temperature": None, "stop": None, "guided_decoding": None, "max_tokens": None}
    assert parse_sampling_params(document) == SamplingParams(max_tokens=None)


@pytest.mark.parametrize("everything", [-1, 0])
def test_all_tokens_are_spelled_minus_one_or_zero(everything: int) -> None:
    assert parse_sampling_params({"top_k": everything}).top_k == 0


def test_strings_of_request_parameters_are_read_where_they_are_unambiguous() -> None:
    params = parse_sampling_params(
        {
            "temperature": "0.5",
            "max_tokens": "32",
            "seed": str(2**63 - 1),
            "ignore_eos": "True",
            "stop": "\n",
            "stop_token_ids": "[1]",
            "logit_bias": '{"2": 3}',
            "structured_outputs": '{"json": {"type": "integer"}}',
        }
    )
    assert params.temperature == 0.5
    assert params.max_tokens == 32
    assert params.seed == 2**63 - 1
    assert params.ignore_eos is True
    assert params.stop == ("\n",)
    assert params.stop_token_ids == (1,)
    assert params.logit_bias == {2: 3.0}
    assert params.guide is not None
    assert json.loads(params.guide.source) == {"type": "integer"}


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63) + 1])
def test_a_long_integer_in_a_string_is_exact(seed: int) -> None:
    assert parse_sampling_params({"seed": str(seed)}).seed == seed


def test_an_integer_may_come_as_a_double_that_is_one() -> None:
    assert parse_sampling_params({"max_tokens": 5.0}).max_tokens == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", 17),
        ("n", True),
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", "warm"),
        ("temperature", "1_0"),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 10**400),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("seed", 2**63),
        ("seed", str(2**63)),
        ("logit_bias", {"1": 100.5}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", [1]),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
        ("stop", 5),
        ("stop", ""),
        ("stop", ["a", 1]),
        ("stop", ["x"] * 17),
        ("stop", "x" * 1025),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", 3),
        ("stop_token_ids", [1] * 129),
        ("ignore_eos", 1),
        ("ignore_eos", "yes"),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("guided_decoding", "regex"),
        ("guided_decoding", []),
        ("guided_decoding", {"regexp": "a"}),
        ("guided_decoding", {"regex": "a", "choice": ["b"]}),
        ("guided_decoding", {"regex": ""}),
        ("guided_decoding", {"regex": 7}),
        ("guided_decoding", {"regex": "a" * 8193}),
        ("guided_decoding", {"grammar": "a" * 65537}),
        ("guided_decoding", {"choice": []}),
        ("guided_decoding", {"choice": [""]}),
        ("guided_decoding", {"choice": ["a"] * 1025}),
        ("guided_decoding", {"json": "nonsense"}),
        ("guided_decoding", {"json": 3}),
        ("guided_decoding", {"json_object": "on"}),
    ],
)
def test_other_kinds_and_values_are_refused(name: str, value: Any) -> None:
    assert f"sampling parameter '{name}" in refusal(**{name: value})


def test_the_refusal_says_what_was_expected_and_what_came() -> None:
    assert (
        refusal(top_p=2)
        == "sampling parameter 'top_p' must be a number above 0 and at most 1, got 2"
    )


def test_unknown_names_are_refused() -> None:
    assert refusal(temprature=1).startswith("'temprature' is none of the sampling parameters")


def test_tokens_beyond_the_vocabulary_are_refused() -> None:
    assert refusal(logit_bias={"100": 1}) == (
        "sampling parameter 'logit_bias' may name tokens below 100, the size of the vocabulary, "
        "got 100"
    )
    assert "'stop_token_ids' may name tokens below 100" in refusal(stop_token_ids=[100])
    assert parse_sampling_params({"stop_token_ids": [100]}).stop_token_ids == (100,)


def test_one_token_under_two_spellings_is_refused() -> None:
    assert "has token 1 twice" in refusal(logit_bias={"1": 1, "01": 2})


def test_too_many_biases_are_refused() -> None:
    assert "may have 1024 tokens, got 1025" in refusal(
        logit_bias={str(token): 1 for token in range(1025)}
    )


def test_json_of_any_size_in_a_string_is_not_read() -> None:
    assert refusal(stop_token_ids="[" + " " * STRUCTURE_CHARACTERS_MAX) == (
        "sampling parameter 'stop_token_ids' may have 1048576 characters of JSON, got 1048577"
    )


def test_the_least_may_not_be_more_than_the_most() -> None:
    assert "'min_tokens' must be at most 'max_tokens', which is 16" in refusal(min_tokens=17)
    assert parse_sampling_params({"min_tokens": 16}).min_tokens == 16


@pytest.mark.parametrize(
    ("given", "guide"),
    [
        ({"json": {"type": "null"}}, Guide(GuideKind.JSON_SCHEMA, '{"type":"null"}')),
        ({"json": '{"type": "null"}'}, Guide(GuideKind.JSON_SCHEMA, '{"type":"null"}')),
        ({"json_object": True}, Guide(GuideKind.JSON_OBJECT, "")),
        ({"choice": ["a", "ä"]}, Guide(GuideKind.CHOICE, '["a","\\u00e4"]')),
        ({"grammar": 'start: "a"'}, Guide(GuideKind.GRAMMAR, 'start: "a"')),
        ({"regex": "a", "choice": None, "json_object": False}, Guide(GuideKind.REGEX, "a")),
        ({"json_object": False}, None),
        ({"json_object": "false"}, None),
        ({}, None),
    ],
)
def test_every_guide_is_read(given: Any, guide: Guide | None) -> None:
    assert parse_sampling_params({"guided_decoding": given}).guide == guide
    assert parse_sampling_params({"structured_outputs": given}).guide == guide


def test_two_names_for_one_guide_are_refused() -> None:
    both = {"guided_decoding": {"regex": "a"}, "structured_outputs": {"regex": "a"}}
    assert "got both" in refusal(**both)


def test_a_bottomless_schema_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(2000):
        schema = {"not": schema}
    assert "nested 100 deep" in refusal(guided_decoding={"json": schema})
