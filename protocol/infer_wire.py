"""Inference messages on the protobuf wire, without copies of tensor data."""

from .infer_wire_request import (
    decode_model_infer as decode_model_infer,
    peek_request_id as peek_request_id,
)
from .infer_wire_response import (
    encode_model_infer_response as encode_model_infer_response,
    encode_stream_response as encode_stream_response,
)
