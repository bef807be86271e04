"""Inference messages on the protobuf wire, without copies of tensor data."""

from .infer_wire_request import decode_model_infer, peek_request_id
from .infer_wire_response import encode_model_infer_response, encode_stream_response

__all__ = [
    "decode_model_infer",
    "encode_model_infer_response",
    "encode_stream_response",
    "peek_request_id",
]
