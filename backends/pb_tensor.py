"""The tensor a Python model works with.

A model may write into the arrays it gets: those received in a read-only buffer are copied when
first asked for. What it sends is copied, so that it may use its own buffers again.
"""

# ruff: noqa: SLF001 - a received tensor is made without the checks of the constructor

from __future__ import annotations

from typing import Any, Self, final

import numpy as np

from ..protocol.dtypes import BYTES, CONFIG_NUMBERS, NUMPY_DTYPES, datatype_of
from ..protocol.tensors import Array, Tensor as ServerTensor, encode_bytes_elements
from .bf16_dlpack import as_bf16, bf16_as_uint16, bf16_capsule

_HOST = 1
"""DLPack's number of host memory."""


class TritonModelException(Exception):  # noqa: N818 - the name models catch
    """A model used this module wrongly, or asked for what the server cannot do."""

    __module__ = "triton_python_backend_utils"  # where its users know it from


@final
class Tensor:
    """One named tensor.

    Args:
      name: Not empty.
      numpy_array: The elements; text, byte strings and objects are BYTES. Borrowed until the
        response that holds the tensor was returned or sent.

    Raises:
      TritonModelException: the name is empty or no str, or the elements are no numpy array.
    """

    __slots__ = ("_array", "_name", "_source")

    def __init__(self, name: str, numpy_array: Array) -> None:
        if not isinstance(name, str) or not name:
            got = "an empty one" if isinstance(name, str) else type(name).__name__
            raise TritonModelException(f"a Tensor needs a name, got {got}")
        if not isinstance(numpy_array, np.ndarray):
            raise TritonModelException(
                f"Tensor '{name}' needs a numpy array, got {type(numpy_array).__name__}"
            )
        self._name = name
        self._array: Array | None = numpy_array
        self._source: ServerTensor | None = None

    @classmethod
    def _received(cls, source: ServerTensor) -> Self:
        tensor = cls.__new__(cls)
        tensor._name = source.name
        tensor._array = None
        tensor._source = source
        return tensor

    def __repr__(self) -> str:
        return f"<Tensor {self._name} {self.shape()}>"

    def name(self) -> str:
        """Return the name."""
        return self._name

    def shape(self) -> list[int]:
        """Return all dimensions, the batch dimension included."""
        return list(self.as_numpy().shape if self._source is None else self._source.shape)

    def triton_dtype(self) -> int:
        """Return the data type as its number in a model configuration, such as 11 for FP32."""
        return CONFIG_NUMBERS[self._datatype()]

    def _datatype(self) -> str:
        if self._source is not None:
            return self._source.datatype
        assert self._array is not None
        datatype = datatype_of(self._array.dtype)
        if datatype is None:
            raise TritonModelException(
                f"Tensor '{self._name}' has elements of numpy type {self._array.dtype}, "
                "which is no Triton data type"
            )
        return datatype

    def as_numpy(self) -> Array:
        """Return the elements, always the same array; writable.

        BYTES are `bytes` objects; BF16 is `ml_dtypes.bfloat16`.
        """
        array = self._array
        if array is None:
            assert self._source is not None
            array = self._array = self._source.own_array()
        return array

    def _to_send(self) -> ServerTensor:
        """Return what goes to another model: the elements as they are now, to be read only.

        Numbers share this tensor's memory.

        Raises:
          TritonModelException: the elements are of no Triton data type.
        """
        source = self._source
        if self._array is None:
            assert source is not None
            raw = source.given_raw
            if raw is not None:
                return ServerTensor(self._name, source.datatype, source.shape, raw=raw)
        datatype = self._datatype()
        array = np.asarray(self.as_numpy())
        if datatype == BYTES:
            raw = encode_bytes_elements(array.ravel().tolist())
            return ServerTensor(self._name, datatype, array.shape, raw=raw)
        view = np.ascontiguousarray(array, NUMPY_DTYPES[datatype]).reshape(array.shape).view()
        view.flags.writeable = False
        return ServerTensor(self._name, datatype, array.shape, array=view)

    def is_cpu(self) -> bool:
        """Return True: all tensors are in host memory."""
        return True

    def to_dlpack(self) -> Any:
        """Return the elements as a DLPack capsule that shares their memory.

        Raises:
          TritonModelException: the tensor is BYTES or not contiguous.
        """
        return self.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        array = self._shareable()
        return bf16_capsule(array) if self._datatype() == "BF16" else array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.as_numpy().__dlpack_device__()

    @classmethod
    def from_dlpack(cls, name: str, tensor: Any) -> Self:
        """Return a tensor that shares the memory of a DLPack capsule, or of an object with one.

        Raises:
          TritonModelException: it is not on the CPU, not contiguous, or of a type numpy lacks.
        """
        try:
            array = _array_of(tensor)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TritonModelException(f"Tensor '{name}' cannot use this DLPack: {error}") from None
        if not array.flags.c_contiguous:
            raise TritonModelException(
                f"Tensor '{name}' needs a DLPack that is contiguous in C order, got strides "
                f"{array.strides} for shape {array.shape}"
            )
        return cls(name, array)

    def _shareable(self) -> Array:
        array = self.as_numpy()
        datatype = self._datatype()
        if datatype == BYTES:
            raise TritonModelException(
                f"Tensor '{self._name}' is BYTES, which numpy cannot share as DLPack"
            )
        if not array.flags.c_contiguous:
            raise TritonModelException(
                f"Tensor '{self._name}' can be DLPack only if it is contiguous in C order, "
                f"got strides {array.strides} for shape {array.shape}"
            )
        return array


def _array_of(tensor: Any) -> Array:
    """Return an array that shares the memory of a DLPack capsule or of an object with one."""
    if hasattr(tensor, "__dlpack__"):
        try:
            return np.from_dlpack(tensor)
        except (BufferError, RuntimeError):
            if tensor.__dlpack_device__()[0] != _HOST:
                raise
            tensor = tensor.__dlpack__()  # it may be BF16
    is_bf16 = bf16_as_uint16(tensor)
    array: Array = np.from_dlpack(_Capsule(tensor))
    return as_bf16(array) if is_bf16 else array


class _Capsule:
    """Gives a bare DLPack capsule of host memory the methods that numpy asks for."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST, 0
