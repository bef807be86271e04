from __future__ import annotations

import json
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritrio.protocol import json_codec
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.json_codec import (
    CACHED_HEADERS_MAX,
    decode_infer,
    encode_infer_response,
)
from tritrio.protocol.model_spec import InputSpec
from tritrio.protocol.requests import InferRequest, InferResponse, RequestedOutput
from tritrio.protocol.tensors import Tensor, encode_bytes_elements

from .infer_specs import PROPERTY, Refused, blob_input, body, decode, json_input, request, spec

FP32_IN = spec(InputSpec("IN", "FP32", (-1,)))


def answer(
    *outputs: Tensor, asked: InferRequest | None = None, request_id: str = ""
) -> tuple[bytes, int | None]:
    response = InferResponse("m", "1", request_id, list(outputs))
    parts, header_length = encode_infer_response(response, asked or request())
    return b"".join(parts), header_length


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
def test_what_is_no_json_object_is_refused_with_offset_and_excerpt(text, facts):
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
def test_missing_members_and_wrong_kinds_are_named(text, facts):
    with Refused(*facts):
        decode(text)


# Shapes, data and datatypes (J01 to J07, J12).


@pytest.mark.parametrize(
    ("shape", "got"),
    [
        ([2, -5], "got -5"),
        ([-1], "got -1"),
        ([1.5], "got 1.5"),
        (["2"], "got '2'"),
        ([True], "got true"),
        ([2**63], f"got {2**63}"),
        (2, "got 2"),
    ],
)
def test_shapes_hold_non_negative_integers(shape, got):
    with Refused("'shape'", "'IN'", "integers >= 0", got):
        decode(body({"name": "IN", "datatype": "INT32", "shape": shape, "data": [1, 2]}))


def test_a_shape_of_null_or_of_10000_dimensions_is_refused():
    with Refused("'shape'", "got null"):
        decode(body({"name": "IN", "datatype": "INT32", "shape": None, "data": [1, 2]}))
    with Refused("'shape'", "got 10000"):
        decode(body(json_input([1], shape=[1] * 10_000)))


@pytest.mark.parametrize("data", [[1, 2, 3], [1], [[1, 2], [3]], []])
def test_data_must_fit_the_shape(data):
    count = len(np.hstack(data)) if data else 0
    with Refused("'data'", "'IN'", "[2]", "expected 2 elements", f"got {count}"):
        decode(body(json_input(data, shape=[2])))


@pytest.mark.parametrize(
    "data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[1], [2, 3, 4]], [[[1]], 2, [[3, [4]]], []]]
)
def test_any_nesting_with_the_right_count_is_row_major(data):
    model = spec(InputSpec("IN", "INT32", (2, 2)))
    tensor = decode(body(json_input(data, shape=[2, 2])), model=model).inputs["IN"]
    assert tensor.array.tolist() == [[1, 2], [3, 4]]


def nest(value: object, depth: int) -> object:
    for _ in range(depth):
        value = [value]
    return value


def test_data_may_be_nested_100_deep_and_no_deeper():
    for item in (nest(5, 100), [nest(5, 99)]):
        assert decode(body(json_input(item, shape=[1]))).inputs["IN"].array.tolist() == [5]
    with Refused("'IN'", "limit of 100"):
        decode(body(json_input(nest(5, 101), shape=[1])))
    mixed = [1, nest(5, 99)]
    assert decode(body(json_input(mixed))).inputs["IN"].array.tolist() == [1, 5]
    with Refused("'IN'", "limit of 100"):
        decode(body(json_input([1, nest(5, 100)])))


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("INT8", 300),
        ("INT8", -129),
        ("UINT8", -1),
        ("UINT32", 2**32),
        ("INT64", 2**63),
        ("INT64", 2**64),
        ("UINT64", 2**64),
        ("INT32", 1e3),
        ("INT32", 1.0),
        ("INT32", "1"),
        ("INT32", True),
        ("INT32", None),
        ("BOOL", 0),
        ("BOOL", 1),
        ("BOOL", "true"),
        ("BOOL", 2),
        ("FP32", "1"),
        ("FP64", True),
        ("BYTES", 1),
        ("BYTES", {}),
    ],
)
def test_elements_that_do_not_fit_the_datatype_are_refused_with_their_index(datatype, value):
    good = {"BOOL": True, "BYTES": "a"}.get(datatype, 1)
    model = spec(InputSpec("IN", datatype, (2,)))
    with Refused("'data'", "'IN'", datatype, "at element 1"):
        decode(body(json_input([good, value], datatype)), model=model)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("UINT64", [2**64 - 1, 0]),
        ("INT64", [-(2**63), 2**63 - 1]),
        ("INT8", [-128, 127]),
        ("UINT16", [65535, 0]),
        ("BOOL", [True, False]),
        ("FP32", [0.5, -3]),
        ("FP64", [1e300, 2**70]),
    ],
)
def test_extreme_values_arrive_exactly(datatype, values):
    model = spec(InputSpec("IN", datatype, (2,)))
    tensor = decode(body(json_input(values, datatype)), model=model).inputs["IN"]
    assert tensor.array.tolist() == values


def test_minus_zero_is_an_integer():
    text = body(json_input([1])).replace(b"[1]}", b"[-0]}")
    assert decode(text).inputs["IN"].array.tolist() == [0]


def test_a_number_beyond_double_is_refused_for_fp64_and_an_overflow_of_fp32_is_infinite():
    with Refused("'IN'", "numbers", "at element 0"):
        text = body(json_input([10**400], "FP32"))
        decode(text, model=FP32_IN)
    tensor = decode(body(json_input([1e39], "FP32")), model=FP32_IN).inputs["IN"]
    assert tensor.array.tolist() == [np.inf]


def test_nan_and_infinities_are_taken():
    text = body(json_input([float("nan"), float("inf"), -float("inf")], "FP32"))
    assert b"NaN,Infinity,-Infinity" in text
    array = decode(text, model=FP32_IN).inputs["IN"].array
    assert np.isnan(array[0])
    assert array[1:].tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_needs_binary_data(datatype):
    with Refused("'IN'", datatype, "binary"):
        decode(body(json_input([1.0], datatype)), model=spec(InputSpec("IN", datatype, (1,))))
    with Refused("'OUT'", datatype, "binary"):
        answer(Tensor("OUT", datatype, (1,), raw=b"\0\0"))


def test_bf16_is_rounded_and_travels_as_binary():
    raw = np.array([1.0, 3.14159], np.float32).astype(ml_dtypes.bfloat16).tobytes()
    head = body(blob_input(4, [2], datatype="BF16"))
    made = decode(head + raw, header_length=len(head), model=spec(InputSpec("IN", "BF16", (2,))))
    array = made.inputs["IN"].array
    assert array.astype(np.float32).tolist() == [1.0, 3.140625]
    made.binary_default = True
    text, header_length = answer(Tensor("OUT", "BF16", (2,), array=array), asked=made)
    assert text[header_length:] == raw


BYTES_IN = spec(InputSpec("IN", "BYTES", (-1,)))


def test_bytes_keep_nul_empty_and_emoji_both_ways():
    texts = ["a\0b", "", "🎉 é", "a:b"]
    escaped = body(json_input(texts, "BYTES"))
    for text in (escaped, json.dumps(json.loads(escaped), ensure_ascii=False).encode()):
        tensor = decode(text, model=BYTES_IN).inputs["IN"]
        assert tensor.array.tolist() == [t.encode() for t in texts]
        reply, _ = answer(Tensor("OUT", "BYTES", (4,), raw=tensor.raw))
        assert json.loads(reply)["outputs"][0]["data"] == texts


def test_a_lone_surrogate_is_refused():
    with Refused("lone surrogate"):
        decode(body(json_input(["\ud83c"], "BYTES")), model=BYTES_IN)


@pytest.mark.parametrize("element", [b"\xff", b"\xed\xa0\x80", "\ud800"])
def test_bytes_that_are_no_utf8_ask_for_binary_output(element):
    array = np.array([element], np.object_)
    with Refused("'OUT'", "UTF-8", "binary"):
        answer(Tensor("OUT", "BYTES", (1,), array=array))


def test_one_source_of_data_is_needed():
    both = json_input([1]) | {"parameters": {"binary_data_size": 4}}
    with Refused("'IN'", "'data'", "'binary_data_size'", "'shared_memory_region'", "got data and"):
        decode(body(both))
    with Refused("'IN'", "got none"):
        decode(body({"name": "IN", "shape": [1], "datatype": "INT32"}))


def test_shared_memory_of_an_unknown_region_is_not_found():
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    tensor = {"name": "IN", "shape": [1], "datatype": "INT32", "parameters": parameters}
    with Refused("'r'", code=ErrorCode.NOT_FOUND):
        decode(body(tensor))
    del parameters["shared_memory_region"]
    with Refused("'shared_memory_byte_size'", "'IN'", "'shared_memory_region'"):
        decode(body(tensor))


@pytest.mark.parametrize(
    ("datatype", "hint"), [("int32", "'INT32'"), ("TYPE_FP32", "'FP32'"), ("STRING", "'BYTES'")]
)
def test_a_misspelt_datatype_is_refused_with_the_right_spelling(datatype, hint):
    with Refused("'IN'", f"'{datatype}'", f"write {hint}"):
        decode(body(json_input([1], datatype)))


def test_base64_text_as_data_is_pointed_to_binary_data():
    with Refused("'data'", "'IN'", "array", "'AAEC'", "binary"):
        decode(body(json_input("AAEC", "UINT8", [3])), model=spec(InputSpec("IN", "UINT8", (3,))))


def test_data_of_a_zero_element_shape_is_ignored():
    tensor = decode(body(json_input([1, 2], shape=[0]))).inputs["IN"]
    assert tensor.array.shape == (0,)


def test_inputs_and_outputs_are_listed_once():
    with Refused("input 'IN'", "more than once"):
        decode(body(json_input([1]), json_input([1])))
    with Refused("output 'OUT'", "more than once"):
        decode(body(json_input([1]), outputs=[{"name": "OUT"}, {"name": "OUT"}]))


def test_no_outputs_mean_all():
    assert decode(body(json_input([1]), outputs=[])).outputs == ()
    assert decode(body(json_input([1]))).outputs == ()


# Parameters (J11).


def test_parameters_become_attributes_or_reach_the_model():
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
def test_parameters_of_a_wrong_kind_are_refused_by_name(key, value):
    with Refused(f"'{key}'"):
        decode(body(json_input([1]), parameters={key: value}))


def test_a_long_string_sequence_id_is_not_supported():
    made = decode(body(json_input([1]), parameters={"sequence_id": "x" * 128}))
    assert made.sequence_id == "x" * 128
    with Refused("'sequence_id'", "129", code=ErrorCode.UNSUPPORTED):
        decode(body(json_input([1]), parameters={"sequence_id": "x" * 129}))


def test_output_parameters_are_checked():
    def outputs(**parameters: object) -> bytes:
        return body(json_input([1]), outputs=[{"name": "OUT", "parameters": parameters}])

    (output,) = decode(outputs(classification=3, binary_data=True)).outputs
    assert (output.name, output.classification_count, output.binary) == ("OUT", 3, True)
    with Refused("'shared_memory_region'", "'classification'"):
        decode(outputs(shared_memory_region="r", classification=1))
    with Refused("'shared_memory_region'", "'binary_data'"):
        decode(outputs(shared_memory_region="r", binary_data=True))
    with Refused("'r'", code=ErrorCode.NOT_FOUND):
        decode(outputs(shared_memory_region="r", shared_memory_byte_size=4))
    with Refused("'binary_data'", "a boolean"):
        decode(outputs(binary_data=1))
    with Refused("'classification'", "integer >= 0"):
        decode(outputs(classification=-1))


# Limits (H05).


def test_the_json_part_may_have_exactly_the_limit():
    text = body(json_input([1, 2]))
    decode(text, limit_bytes=len(text))
    with Refused(str(len(text)), f"limit of {len(text) - 1} bytes", "--http-max-input-size"):
        decode(text, limit_bytes=len(text) - 1)


def test_an_inline_tensor_may_have_exactly_the_limit():
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


def test_a_repeated_header_gives_equal_requests_that_share_nothing_mutable():
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


def test_requests_that_differ_in_the_id_alone_share_a_kept_header():
    json_codec._headers.clear()
    for request_id in ("1", "a-b_c", "", "é", 'q"', "\\"):
        head = body(blob_input(4, [1]), id=request_id)
        made = decode(head + bytes(4), header_length=len(head))
        assert made.id == request_id
    head = body(blob_input(4, [1]))
    assert decode(head + bytes(4), header_length=len(head)).id == ""
    assert len(json_codec._headers) == 5  # the three plain ids share one


def test_inline_data_is_never_kept():
    json_codec._headers.clear()
    decode(body(json_input([1])))
    assert not json_codec._headers


def test_kept_headers_are_bounded():
    for size in range(CACHED_HEADERS_MAX + 10):
        head = body(blob_input(4 * size, [size]))
        decode(head + bytes(4 * size), header_length=len(head))
        assert len(json_codec._headers) <= CACHED_HEADERS_MAX


# Responses.


def test_a_json_answer_has_its_members_in_order():
    text, header_length = answer(
        Tensor("OUT", "INT32", (2, 2), array=np.array([[1, 2], [3, 4]], np.int32)),
        Tensor("B", "BOOL", (2,), array=np.array([True, False])),
        request_id='i"d',
    )
    assert header_length is None
    assert text == (
        b'{"id":"i\\"d","model_name":"m","model_version":"1","outputs":['
        b'{"name":"OUT","datatype":"INT32","shape":[2,2],"data":[1,2,3,4]},'
        b'{"name":"B","datatype":"BOOL","shape":[2],"data":[true,false]}]}'
    )


def test_response_parameters_stand_before_the_outputs():
    response = InferResponse("m", "1")
    response.parameters = {"a": True, "b": 1, "c": 0.5, "d": "x"}
    parts, _ = encode_infer_response(response, request())
    assert b"".join(parts) == (
        b'{"model_name":"m","model_version":"1",'
        b'"parameters":{"a":true,"b":1,"c":0.5,"d":"x"},"outputs":[]}'
    )


@pytest.mark.parametrize("count", [3, 300])
def test_floats_print_as_doubles_and_non_finite_ones_as_literals(count):
    fp32 = Tensor("OUT", "FP32", (count,), array=np.full(count, 0.1, np.float32))
    text, _ = answer(fp32)
    assert b'"data":[0.10000000149011612,0.10000000149011612,' in text
    values = np.full(count, np.nan)
    values[1:3] = [np.inf, -np.inf]
    text, _ = answer(Tensor("OUT", "FP64", (count,), array=values))
    assert b'"data":[NaN,Infinity,-Infinity' in text


def test_non_contiguous_arrays_are_row_major():
    array = np.arange(200, dtype=np.int64).reshape(10, 20).T
    text, _ = answer(Tensor("OUT", "INT64", (20, 10), array=array))
    assert json.loads(text)["outputs"][0]["data"] == array.ravel().tolist()


def test_binary_answers_follow_the_json_part_in_output_order():
    asked = request(outputs=(RequestedOutput("A", binary=True), RequestedOutput("B")))
    a = Tensor("A", "INT32", (1,), raw=b"\1\0\0\0")
    b = Tensor("B", "INT32", (1,), raw=b"\2\0\0\0")
    c = Tensor("C", "INT32", (1,), raw=b"\3\0\0\0")
    for _ in range(2):
        text, header_length = answer(b, c, a, asked=asked)
        assert header_length is not None
        assert text[:header_length] == (
            b'{"model_name":"m","model_version":"1","outputs":['
            b'{"name":"B","datatype":"INT32","shape":[1],"data":[2]},'
            b'{"name":"A","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}}]}'
        )
        assert text[header_length:] == b"\1\0\0\0"
    asked.binary_default = True
    text, header_length = answer(b, c, a, asked=asked)
    assert text[header_length:] == b"\2\0\0\0\1\0\0\0"
    asked.outputs = (RequestedOutput("A", binary=False),)
    assert answer(a, asked=asked)[1] is None


def test_an_empty_binary_output_adds_nothing_and_leaves_a_json_answer():
    text, header_length = answer(
        Tensor("OUT", "FP32", (0, 2), raw=b""), asked=request(binary_default=True)
    )
    assert header_length is None
    assert json.loads(text)["outputs"] == [
        {
            "name": "OUT",
            "datatype": "FP32",
            "shape": [0, 2],
            "parameters": {"binary_data_size": 0},
        }
    ]


# Properties.


NUMBERS = {
    "BOOL": st.booleans(),
    "FP32": st.floats(width=32, allow_nan=False),
    "FP64": st.floats(allow_nan=False),
    **{
        f"{sign}INT{bits}": st.integers(
            0 if sign else -(2 ** (bits - 1)), 2**bits - 1 if sign else 2 ** (bits - 1) - 1
        )
        for sign in ("U", "")
        for bits in (8, 16, 32, 64)
    },
    "BYTES": st.text(),
}


@PROPERTY
@given(
    st.sampled_from(sorted(NUMBERS)).flatmap(
        lambda name: st.tuples(st.just(name), st.lists(NUMBERS[name], max_size=80))
    )
)
def test_json_data_comes_back_as_it_was_sent(case):
    datatype, values = case
    model = spec(InputSpec("IN", datatype, (-1,)))
    tensor = decode(body(json_input(values, datatype)), model=model).inputs["IN"]
    for copy in (tensor, Tensor("IN", datatype, tensor.shape, raw=tensor.raw)):
        text, _ = answer(copy)
        assert json.loads(text)["outputs"][0]["data"] == values


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
def test_random_documents_never_raise_anything_but_request_errors(document, header_length):
    text = json.dumps(document).encode()
    if header_length is None or header_length <= len(text):
        with suppress(RequestError):
            decode(text, header_length=header_length)


@PROPERTY
@given(st.binary(max_size=60), st.sampled_from([None, 0, 3]))
def test_random_bytes_never_raise_anything_but_request_errors(text, header_length):
    with suppress(RequestError):
        decode_infer(
            text, header_length=header_length, spec=spec(), model_name="m", model_version=""
        )


def test_raw_bytes_elements_of_a_model_must_be_well_formed():
    good = encode_bytes_elements([b"a"])
    with Refused("'OUT'", "BYTES", code=ErrorCode.INTERNAL):
        answer(Tensor("OUT", "BYTES", (1,), raw=good + b"\0"))
