"""The same bytes mean the same to google's parser."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, strategies as st
from tritonclient.grpc import service_pb2 as pb

from tritrio.protocol.dtypes import NUMPY_DTYPES
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.infer_wire import (
    decode_model_infer,
)
from tritrio.protocol.tensors import encode_bytes_elements

from .infer_specs import PROPERTY

NAMES = st.text(alphabet="ab", max_size=2)
PARAMETER = st.one_of(
    st.builds(lambda v: pb.InferParameter(bool_param=v), st.booleans()),
    st.builds(lambda v: pb.InferParameter(int64_param=v), st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda v: pb.InferParameter(string_param=v), st.text(max_size=4)),
    st.builds(lambda v: pb.InferParameter(double_param=v), st.floats(allow_nan=False)),
    st.builds(lambda v: pb.InferParameter(uint64_param=v), st.integers(0, 2**64 - 1)),
    st.builds(pb.InferParameter),
)
CONTENTS = st.one_of(
    st.builds(pb.InferTensorContents),
    st.builds(
        lambda v: pb.InferTensorContents(int_contents=v),
        st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    ),
    st.builds(
        lambda v: pb.InferTensorContents(fp32_contents=v),
        st.lists(st.floats(width=32, allow_nan=False), max_size=4),
    ),
    st.builds(lambda v: pb.InferTensorContents(bytes_contents=v), st.lists(st.binary(max_size=4))),
)
PIECE = st.one_of(
    st.builds(lambda v: pb.ModelInferRequest(model_name=v), NAMES),
    st.builds(lambda v: pb.ModelInferRequest(id=v), st.text(max_size=3)),
    st.builds(lambda v: pb.ModelInferRequest(raw_input_contents=v), st.lists(st.binary())),
    st.builds(lambda k, v: pb.ModelInferRequest(parameters={k: v}), st.text(max_size=2), PARAMETER),
    st.builds(
        lambda n, t, s, c, p: pb.ModelInferRequest(
            inputs=[
                pb.ModelInferRequest.InferInputTensor(
                    name=n, datatype=t, shape=s, contents=c, parameters=p
                )
            ]
        ),
        st.text(max_size=2),
        st.sampled_from(["INT32", "INT8", "FP32", "BYTES", "FP16", "?"]),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        CONTENTS | st.none(),
        st.dictionaries(NAMES, PARAMETER, max_size=2),
    ),
    st.builds(
        lambda n, p: pb.ModelInferRequest(
            outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=n, parameters=p)]
        ),
        st.text(max_size=2),
        st.dictionaries(NAMES, PARAMETER, max_size=2),
    ),
)
WIRE = st.lists(PIECE, max_size=6).map(
    lambda pieces: b"".join(piece.SerializeToString() for piece in pieces)
)


def agrees_with_google(data: bytes) -> None:
    """Decode twice, so that kept prefixes are used too, and compare with google's parser."""
    try:
        expected = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        with pytest.raises(RequestError):
            decode_model_infer(data)
        return
    for _ in range(2):
        try:
            request = decode_model_infer(data)
        except RequestError as error:
            assert error.code is not ErrorCode.INTERNAL, error.message  # noqa: PT017
            return
        assert request.model_name == expected.model_name
        assert request.model_version == expected.model_version
        assert request.id == expected.id
        assert [o.name for o in request.outputs] == [o.name for o in expected.outputs]
        for key, value in request.parameters.items():
            parameter = expected.parameters[key]
            assert value == getattr(parameter, parameter.WhichOneof("parameter_choice"))
        raws = iter(expected.raw_input_contents)
        for tensor, wanted in zip(request.inputs.values(), expected.inputs, strict=True):
            assert (tensor.name, tensor.datatype) == (wanted.name, wanted.datatype)
            assert tensor.shape == tuple(wanted.shape)
            contents = wanted.contents
            values = next((list(v) for _, v in contents.ListFields()), None)
            if values is None:
                assert bytes(tensor.raw) == next(raws, b"")
            elif tensor.datatype == "BYTES":
                assert bytes(tensor.raw) == encode_bytes_elements(values)
            else:
                dtype = NUMPY_DTYPES[tensor.datatype]
                assert bytes(tensor.raw) == np.array(values, dtype).tobytes()


@PROPERTY
@given(WIRE)
def test_merged_messages_mean_what_google_says(data: Any) -> None:
    agrees_with_google(data)


@PROPERTY
@given(WIRE, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), st.data())
def test_mutated_and_truncated_messages_are_refused_exactly_when_google_refuses(
    data: Any, edits: Any, draw: Any
) -> None:
    mutated = bytearray(data)
    for position, byte in edits:
        if position < len(mutated):
            mutated[position] = byte
    agrees_with_google(bytes(mutated[: draw.draw(st.integers(0, len(mutated)))]))


@PROPERTY
@given(st.binary(max_size=40))
def test_random_bytes_never_raise_anything_but_request_errors(data: Any) -> None:
    agrees_with_google(data)
    with suppress(RequestError):
        decode_model_infer(memoryview(data))
