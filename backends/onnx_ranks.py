"""Tells inputs of unknown rank from scalars, which ONNX Runtime describes alike.

Only the model file knows: there an input's type has a shape of no dims, or no shape.
Source: onnx.proto, ModelProto, GraphProto, ValueInfoProto and TypeProto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ..protocol.errors import RequestError
from ..protocol.protobuf_wire import LENGTH_DELIMITED, FieldReader, read_text

_GRAPH: Final = 7
_INPUT: Final = 11
_NAME: Final = 1
_TYPE: Final = 2
_TENSOR: Final = 1
_SHAPE: Final = 2

_Extent = tuple[int, int]


def inputs_without_rank(path: Path) -> list[str]:
    """Return the names of the inputs for which a model file has no shape.

    Weights are skipped, not read. A file that is no ONNX protobuf has no such inputs.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            return list(_names(FieldReader(data)))
    except (OSError, ValueError, RequestError):
        return []  # ONNX Runtime, which has loaded it, has formats of its own


def _names(reader: FieldReader) -> Iterator[str]:
    whole = (0, len(reader.data))
    for value_info in _nested(reader, [whole], _GRAPH, _INPUT):
        shapes = _nested(reader, [value_info], _TYPE, _TENSOR, _SHAPE)
        if next(shapes, None) is None:
            for start, stop in _nested(reader, [value_info], _NAME):
                yield read_text(reader.data, start, stop)


def _nested(reader: FieldReader, messages: Iterable[_Extent], *numbers: int) -> Iterator[_Extent]:
    """Yield the messages or texts that lie in `messages` behind these field numbers."""
    if not numbers:
        yield from messages
        return
    for message in messages:
        inner = [
            (start, stop)
            for number, kind, start, stop in reader.fields(*message)
            if number == numbers[0] and kind == LENGTH_DELIMITED
        ]
        yield from _nested(reader, inner, *numbers[1:])
