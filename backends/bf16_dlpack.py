"""BF16 over DLPack, which numpy does not speak: a UINT16 capsule under another type code.

Source: DLPack's `dlpack.h`, DLManagedTensor, whose first member is the DLTensor.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import ml_dtypes
import numpy as np

from ..protocol.tensors import Array

_CAPSULE_NAME: Final = b"dltensor"
_CODE_OFFSET: Final = 20
"""Bytes before the type code: the data pointer (8), the device (8) and the rank (4)."""
_UINT: Final = 1
_BFLOAT: Final = 4

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid.restype = ctypes.c_int
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pointer_of.restype = ctypes.c_void_p


def bf16_capsule(array: Array) -> Any:
    """Return a capsule that shares the memory of a contiguous BF16 array."""
    capsule = array.view(np.uint16).__dlpack__()
    _code_of(capsule).value = _BFLOAT
    return capsule


def bf16_as_uint16(capsule: Any) -> bool:
    """Relabel a BF16 capsule as UINT16, so that numpy takes it.

    Returns:
      Whether it was one; view the array that numpy makes of it as BF16 then.
    """
    if not _is_valid(capsule, _CAPSULE_NAME):
        return False
    code = _code_of(capsule)
    if code.value != _BFLOAT:
        return False
    code.value = _UINT
    return True


def as_bf16(array: Array) -> Array:
    """Return the BF16 array in the memory of a UINT16 one."""
    return array.view(ml_dtypes.bfloat16)


def _code_of(capsule: Any) -> ctypes.c_uint8:
    address = _pointer_of(capsule, _CAPSULE_NAME)
    assert address is not None
    return ctypes.c_uint8.from_address(address + _CODE_OFFSET)
