"""Hypothesis strategies for google protobuf messages, made from their descriptors."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

FLOAT32 = st.floats(width=32, allow_nan=False).filter(lambda value: value != 0.0)
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, (1 << 64) - 1),
    FieldDescriptor.TYPE_FLOAT: FLOAT32,
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_STRING: st.text(max_size=12),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 20),
}


@st.composite
def messages(draw: st.DrawFn, cls: Any) -> Any:
    """Any message of a google class: a few of its fields, each with any value."""
    message = cls()
    _fill(draw, message)
    return message


def _fill(draw: st.DrawFn, message: Any) -> None:
    descriptor: Descriptor = message.DESCRIPTOR
    if not descriptor.fields:
        return
    for field in draw(st.lists(st.sampled_from(list(descriptor.fields)), max_size=5, unique=True)):
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(draw, message, field)
        elif field.is_repeated:
            _fill_list(draw, getattr(message, field.name), field)
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _fill(draw, getattr(message, field.name))
        else:
            setattr(message, field.name, draw(SCALARS[field.type]))


def _fill_list(draw: st.DrawFn, values: Any, field: FieldDescriptor) -> None:
    if field.message_type is None:
        values.extend(draw(st.lists(SCALARS[field.type], max_size=3)))
        return
    for _ in range(draw(st.integers(0, 2))):
        _fill(draw, values.add())


def _fill_map(draw: st.DrawFn, message: Any, field: FieldDescriptor) -> None:
    entry = field.message_type.fields_by_name
    values = getattr(message, field.name)
    for key in draw(st.lists(SCALARS[entry["key"].type], max_size=2, unique=True)):
        if entry["value"].message_type is None:
            values[key] = draw(SCALARS[entry["value"].type])
        else:
            _fill(draw, values[key])
