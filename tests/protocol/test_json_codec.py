from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tritrio.protocol import json_codec
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.json_codec import (
    CACHED_HEADERS_MAX,
    decode_infer,
)
from tritrio.protocol.model_spec import InputSpec

from .infer_specs import (
    PROPERTY,
    Refused,
    blob_input,
    body,
    decode,
    json_input,
    spec,
)

BYTES_IN = spec(InputSpec("IN", "BYTES", (-1,)))


# Documents that are no requests (H07).


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (b"", ["no bytes"]),
        (b"{", ["at byte 1 of 1", "'{'"]),
        (b'{"inputs":[],}', ["at byte 13", "'{\"inputs\":[],}'"]),
        (b'\xef\xbb\xbf{"inputs":[]}', ["at byte 0"]),
        ('{"inputs":[]}'.encode("utf-16"), ["UTF-8", "at byte 0"]),
        (b'{"inputs":[],"inputs":[]}', ["'inputs'", "more than once"]),
        (b'{"inputs":[{"name":"IN","name":"a:b"}]}', ["'name'", "more than once"]),
        (b'{"inputs":[]}{}', ["at byte 13"]),
        (b"null", ["expected a JSON object", "at byte 0", "'null'"]),
        (b"[]", ["expected a JSON object"]),
        (b"\x00" * 10_000_000, ["at byte 0 of 10000000"]),
        (b'{"a":' + b"9" * 10_000 + b"}", ["too long"]),
        (b"[" * 100_000, ["nested 100 deep"]),
        (b'{"inputs":' + b"[" * 2000 + b"]" * 2000 + b"}", ["nested 100 deep"]),
        ('{"é":tru}'.encode(), ["at byte 6"]),
        (b'{"id":"\xff"}', ["UTF-8", "at byte 7"]),
        (b'{"id":"\\ud800","inputs":[]}', ["lone surrogate"]),
    ],
)
def test_what_is_no_json_object_is_refused_with_offset_and_excerpt(text: Any, facts: Any) -> None:
    with Refused(*facts):
        decode(text)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (b"{}", ["lacks the member 'inputs'"]),
        (b'{"inputs":{}}', ["'inputs'", "an array of objects", "an object"]),
        (b'{"inputs":[1]}', ["'inputs'", "an array of objects", "got 1"]),
        (b'{"inputs":[{}]}', ["input 0", "lacks the member 'name'"]),
        (b'{"inputs":[{"name":1}]}', ["'name'", "a string", "got 1"]),
        (b'{"inputs":[{"name":"IN"}]}', ["'IN'", "lacks the member 'datatype'"]),
        (b'{"inputs":[{"name":"IN","datatype":"INT32"}]}', ["'IN'", "lacks the member 'shape'"]),
        (b'{"id":1,"inputs":[]}', ["'id'", "a string"]),
        (b'{"parameters":[],"inputs":[]}', ["'parameters'", "an object"]),
        (b'{"inputs":[],"outputs":{}}', ["'outputs'", "an array of objects"]),
        (b'{"inputs":[],"outputs":[{}]}', ["output 0", "lacks the member 'name'"]),
    ],
)
def test_missing_members_and_wrong_kinds_are_named(text: Any, facts: Any) -> None:
    with Refused(*facts):
        decode(text)


# Parameters (J11).


def test_parameters_become_attributes_or_reach_the_model() -> None:
    made = decode(
        body(
            json_input([1]),
            id="x",
            parameters={
                "sequence_id": 2**64 - 1,
                "sequence_start": True,
                "sequence_end": True,
                "priority": 3,
                "timeout": 1000,
                "binary_data_output": True,
                "text": "a",
                "number": -5,
                "flag": False,
                "real": 1.5,
            },
        )
    )
    assert made.id == "x"
    assert made.sequence_id == 2**64 - 1
    assert made.sequence_start
    assert made.sequence_end
    assert made.priority == 3
    assert made.timeout_us == 1000
    assert made.binary_default
    assert made.parameters == {"text": "a", "number": -5, "flag": False, "real": 1.5}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k", {}),
        ("k", []),
        ("k", None),
        ("k", 2**63),
        ("sequence_id", -1),
        ("sequence_id", 1.5),
        ("sequence_id", True),
        ("sequence_start", 1),
        ("sequence_end", "true"),
        ("priority", -1),
        ("priority", "1"),
        ("timeout", 1.0),
        ("binary_data_output", 1),
        ("triton_x", 1),
        ("triton_enable_empty_final_response", True),
    ],
)
def test_parameters_of_a_wrong_kind_are_refused_by_name(key: Any, value: Any) -> None:
    with Refused(f"'{key}'"):
        decode(body(json_input([1]), parameters={key: value}))


def test_a_long_string_sequence_id_is_not_supported() -> None:
    made = decode(body(json_input([1]), parameters={"sequence_id": "x" * 128}))
    assert made.sequence_id == "x" * 128
    with Refused("'sequence_id'", "129", code=ErrorCode.UNSUPPORTED):
        decode(body(json_input([1]), parameters={"sequence_id": "x" * 129}))


def test_output_parameters_are_checked() -> None:
    def outputs(**parameters: object) -> bytes:
        return body(json_input([1]), outputs=[{"name": "OUT", "parameters": parameters}])

    (output,) = decode(outputs(classification=3, binary_data=True)).outputs
    assert (output.name, output.classification_count, output.binary) == ("OUT", 3, True)
    with Refused("'binary_data'", "a boolean"):
        decode(outputs(binary_data=1))
    with Refused("'classification'", "integer >= 0"):
        decode(outputs(classification=-1))


# Limits (H05).


def test_the_json_part_may_have_exactly_the_limit() -> None:
    text = body(json_input([1, 2]))
    decode(text, limit_bytes=len(text))
    with Refused(str(len(text)), f"limit of {len(text) - 1} bytes", "--http-max-input-size"):
        decode(text, limit_bytes=len(text) - 1)


def test_an_inline_tensor_may_have_exactly_the_limit() -> None:
    model = spec(InputSpec("IN", "FP64", (-1,)))
    text = body(json_input([0] * 100, "FP64"))
    decode(text, model=model, limit_bytes=800)
    with Refused("'IN'", "800 bytes", "limit of 799", "--http-max-input-size"):
        decode(text, model=model, limit_bytes=799)
    text = body(json_input([""] * 1000, "BYTES"))
    decode(text, model=BYTES_IN, limit_bytes=4000)
    with Refused("'IN'", "4000 bytes", "limit of 3999"):
        decode(text, model=BYTES_IN, limit_bytes=3999)


# The kept JSON parts.


def test_a_repeated_header_gives_equal_requests_that_share_nothing_mutable() -> None:
    head = body(
        blob_input(4, [1]),
        id="7",
        parameters={"k": 1, "priority": 2},
        outputs=[{"name": "OUT", "parameters": {"binary_data": True}}],
    )
    first = decode(head + b"\1\0\0\0", header_length=len(head))
    first.parameters["k"] = 2
    first.inputs["IN"].reshape((1, 1))
    first.batch_size = 99
    again = decode(head + b"\2\0\0\0", header_length=len(head))
    assert again.parameters == {"k": 1}
    assert again.priority == 2
    assert again.id == "7"
    assert again.batch_size == 1
    assert again.inputs["IN"].shape == (1,)
    assert again.inputs["IN"].array.tolist() == [2]
    assert first.inputs["IN"].array.tolist() == [[1]]
    assert [output.binary for output in again.outputs] == [True]


def test_requests_that_differ_in_the_id_alone_share_a_kept_header() -> None:
    json_codec._headers.clear()
    for request_id in ("1", "a-b_c", "", "é", 'q"', "\\"):
        head = body(blob_input(4, [1]), id=request_id)
        made = decode(head + bytes(4), header_length=len(head))
        assert made.id == request_id
    head = body(blob_input(4, [1]))
    assert decode(head + bytes(4), header_length=len(head)).id == ""
    assert len(json_codec._headers) == 5  # the three plain ids share one


def test_inline_data_is_never_kept() -> None:
    json_codec._headers.clear()
    decode(body(json_input([1])))
    assert not json_codec._headers


def test_kept_headers_are_bounded() -> None:
    for size in range(CACHED_HEADERS_MAX + 10):
        head = body(blob_input(4 * size, [size]))
        decode(head + bytes(4 * size), header_length=len(head))
        assert len(json_codec._headers) <= CACHED_HEADERS_MAX


# Rubbish.


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "shape", "datatype", "data", "parameters", "inputs", "id"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@PROPERTY
@given(
    st.dictionaries(st.sampled_from(["inputs", "outputs", "id", "parameters"]), JUNK),
    st.sampled_from([None, 0, 1, 5, 40]),
)
def test_random_documents_never_raise_anything_but_request_errors(
    document: Any, header_length: Any
) -> None:
    text = json.dumps(document).encode()
    if header_length is None or header_length <= len(text):
        with suppress(RequestError):
            decode(text, header_length=header_length)


@PROPERTY
@given(st.binary(max_size=60), st.sampled_from([None, 0, 3]))
def test_random_bytes_never_raise_anything_but_request_errors(
    text: Any, header_length: Any
) -> None:
    with suppress(RequestError):
        decode_infer(
            text, header_length=header_length, spec=spec(), model_name="m", model_version=""
        )
