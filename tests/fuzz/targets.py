"""One function for each parser: it takes any bytes, and raises if the parser did anything wrong.

Wrong is an exception that is no verdict on the input, another answer for other cuts of the same
bytes, memory without bound, and another meaning than google's protobuf or the standard library
give the same input. Time and memory are bounded by whoever calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.protocol.grpc_support import session as grpc_session
from tests.protocol.http2_support import greeting, raw_frame, request_frame
from tritrio.protocol.config_text import ConfigSyntaxError, parse_model_config
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.grpc_session import GrpcSession
from tritrio.protocol.http2_events import Http2Limits
from tritrio.protocol.http2_session import Http2Session
from tritrio.protocol.http_request import HttpLimits
from tritrio.protocol.http_session import HttpFailure, HttpRequest, HttpSession, HttpState
from tritrio.protocol.infer_wire import decode_model_infer
from tritrio.protocol.json_codec import decode_infer
from tritrio.protocol.json_text import parse_json
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.openai.chat_request import parse_chat
from tritrio.protocol.openai.completion_request import parse_completion, parse_embedding
from tritrio.protocol.openai.errors import OpenAiError
from tritrio.protocol.pb.inference import DataType, ModelConfig, ModelInput
from tritrio.protocol.requests import InferRequest

Target = Callable[[bytes], None]

HTTP_LIMITS: Final = HttpLimits(
    head_bytes_max=512, headers_max=16, target_bytes_max=128, body_bytes_max=1024, chunks_max=8
)
HTTP2_LIMITS: Final = Http2Limits(
    streams_max=8,
    stream_window_bytes=4096,
    connection_window_bytes=8192,
    header_list_bytes_max=1024,
    resets_max=8,
    strikes_max=64,
    answers_max=32,
)
ANSWER_BYTES_MAX: Final = 64 * 1024
"""What a session may have to write for a peer that only sends: its answers are limited."""
FRAME_BYTES: Final = 16 * 1024 + 9
INPUT_BYTES_MAX: Final = 1 << 20

_SPEC: Final = ModelSpec.from_config(
    ModelConfig(name="m", input=[ModelInput(name="X", data_type=DataType.TYPE_INT32, dims=[-1])]),
    1,
)


def http1(data: bytes) -> None:
    """Requests mean the same however their bytes are cut, and little is kept of them."""
    size = 1 + data[0] % 16 if data else 1
    whole = _http1_events(data[1:], len(data) or 1)
    assert _http1_events(data[1:], size) == whole


def _http1_events(data: bytes, size: int) -> list[Any]:
    session = HttpSession(HTTP_LIMITS)
    events: list[Any] = []
    for start in range(0, len(data), size):
        events += session.receive_data(data[start : start + size])
        kept = HTTP_LIMITS.head_bytes_max + HTTP_LIMITS.body_bytes_max + size
        assert session.buffered_bytes <= kept
        if session.state is HttpState.FAILED:
            assert isinstance(events[-1], HttpFailure)
            break
    events += session.receive_eof()
    return [
        (each.method, each.target, each.raw_headers, bytes(each.body))
        if isinstance(each, HttpRequest)
        else each
        for each in events
    ]


def http2(data: bytes) -> None:
    """Frames are survived, and neither what is kept nor what is answered grows without bound."""
    session = Http2Session(HTTP2_LIMITS)
    size = _begin(session, data)
    for piece in _pieces(data[1:], size):
        session.receive_data(piece)
        assert session.buffered_bytes <= FRAME_BYTES + HTTP2_LIMITS.header_list_bytes_max * 8 + size
        assert session.output_bytes <= ANSWER_BYTES_MAX
        assert session.open_streams <= HTTP2_LIMITS.streams_max
    session.received_eof()
    assert session.open_streams == 0


def grpc(data: bytes) -> None:
    """Calls and messages are survived, whatever is consumed of them."""
    session = grpc_session(
        message_bytes_max=4096, **{name: getattr(HTTP2_LIMITS, name) for name in _NAMES}
    )
    size = _begin(session, data)
    if data and data[0] & 2:  # the rest are bytes of messages
        session.receive_data(request_frame(1))
        for piece in _pieces(data[1:], min(size, 4096)):
            _receive(session, raw_frame(0, 0, 1, piece))
    else:
        for piece in _pieces(data[1:], size):
            _receive(session, piece)
    session.received_eof()
    assert session.active_calls == 0


_NAMES: Final = (
    "streams_max",
    "stream_window_bytes",
    "connection_window_bytes",
    "header_list_bytes_max",
    "resets_max",
    "strikes_max",
    "answers_max",
)


def _receive(session: GrpcSession, data: bytes) -> None:
    session.receive_data(data)
    assert session.output_bytes <= ANSWER_BYTES_MAX
    kept = FRAME_BYTES + HTTP2_LIMITS.connection_window_bytes + 8 * 4096
    assert session.buffered_bytes <= kept + len(data)


def _begin(session: Http2Session | GrpcSession, data: bytes) -> int:
    """Let the first byte say how the connection begins, and into what sizes it is cut."""
    first = data[0] if data else 0
    if first & 1:
        session.receive_data(greeting((4, 1 << 16)))
        session.take_output()
    return 1 + (first >> 2) * 8


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def json_text(data: bytes) -> None:
    """What is accepted means what the standard library says it means."""
    try:
        ours = parse_json(data, "the input")
    except RequestError as error:
        _check_verdict(error)
        return
    if b"Inf" not in data and b"NaN" not in data:
        assert ours == json.loads(data, parse_int=_number)


def _number(digits: str) -> int | float:
    """An integer, as exact as the parser promises: to 64 bits."""
    value = int(digits)
    return value if -(2**63) <= value < 2**64 else float(value)


def json_request(data: bytes) -> None:
    """A request is decoded, or refused for its own fault."""
    _decode(partial(_decode_http, data, None))


def binary_request(data: bytes) -> None:
    """The same with a length of the JSON part, which the first two bytes say."""
    length = int.from_bytes(data[:2], "little")
    request = _decode(partial(_decode_http, data[2:], length))
    if request is not None and length:
        used = sum(len(tensor.given_raw or b"") for tensor in request.inputs.values())
        assert length + used <= len(data) - 2 + 4 * len(request.inputs)


def _decode_http(body: bytes, length: int | None) -> InferRequest:
    return decode_infer(
        body,
        header_length=length,
        spec=_SPEC,
        model_name="m",
        model_version="",
        limit_bytes=INPUT_BYTES_MAX,
    )


def _decode(decode: Callable[[], InferRequest]) -> InferRequest | None:
    try:
        return decode()
    except RequestError as error:
        _check_verdict(error)
        return None


def _check_verdict(error: RequestError) -> None:
    assert error.code in {ErrorCode.INVALID_ARG, ErrorCode.NOT_FOUND, ErrorCode.UNSUPPORTED}, error
    assert error.message.strip() == error.message
    assert 0 < len(error.message) < 2000


def openai(data: bytes) -> None:
    """A request to OpenAI's API is read, or refused in its shape; the first byte says which."""
    parsers: list[Callable[[bytes], object]] = [parse_chat, parse_completion, parse_embedding]
    try:
        parsers[data[0] % 3 if data else 0](data[1:])
    except RequestError as error:
        _check_verdict(error)
    except OpenAiError as error:
        _check_refusal(error)


def _check_refusal(error: OpenAiError) -> None:
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert len(error.body) < 4000


def wire(data: bytes) -> None:
    """A ModelInferRequest is one for google too, with the same names, and malformed for both."""
    theirs: Any = service_pb2.ModelInferRequest()
    try:
        theirs.ParseFromString(data)
        google_takes = True
    except DecodeError:
        google_takes = False
    ours = fault = None
    try:
        ours = decode_model_infer(data)
    except RequestError as error:
        fault = error
    if ours is not None:
        assert google_takes
        assert _names(ours, ours.inputs.values()) == _names(theirs, theirs.inputs)
    elif fault is not None and fault.code is ErrorCode.INTERNAL:  # malformed
        assert not google_takes
    elif fault is not None:
        _check_verdict(fault)


def _names(request: Any, inputs: Iterable[Any]) -> list[Any]:
    """What a request of either kind says, but for its data and parameters."""
    tensors = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in inputs]
    outputs = [output.name for output in request.outputs]
    return [request.id, request.model_name, request.model_version, tensors, outputs]


def text(data: bytes) -> None:
    """A config.pbtxt that is taken is one for google too, and means the same."""
    try:
        ours = parse_model_config(data, file="config.pbtxt")
    except ConfigSyntaxError:
        return
    if b"\\X" in data:
        return  # hexadecimal for google's parser in C++ and for us, but not for the one in Python
    source = data.removeprefix(b"\xef\xbb\xbf").decode()
    theirs = text_format.Parse(source.replace("\r\n", "\n"), model_config_pb2.ModelConfig())
    mine = model_config_pb2.ModelConfig.FromString(bytes(ours))
    assert str(mine) == str(theirs)  # in which NaN equals itself


TARGETS: Final[dict[str, Target]] = {
    "http1": http1,
    "http2": http2,
    "grpc": grpc,
    "json_text": json_text,
    "json_request": json_request,
    "binary_request": binary_request,
    "openai": openai,
    "wire": wire,
    "text": text,
}
"""Target name -> what takes an input."""
