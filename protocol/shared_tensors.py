"""Tensors that lie in shared memory instead of in messages: what a request says of them.

Source: the KServe v2 system and CUDA shared memory extensions as served by Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, final

from .errors import invalid_argument
from .requests import RequestedOutput
from .wording import quoted, shown

_UINT64_END = 2**64


class RegionSlice(NamedTuple):
    """A place in a registered region.

    Attributes:
      region: The region's name.
      offset: Bytes from the region's start.
      byte_size: Bytes of an input, or most bytes of an output.
    """

    region: str
    offset: int
    byte_size: int


class Hold(Protocol):
    """What is kept for a request until it needs the regions no more."""

    def release(self) -> None:
        """Give it back; called once."""


@final
class SharedTensors:
    """The tensors of one request that lie in shared memory.

    Attributes:
      inputs: Input name -> where its data is.
      outputs: Output name -> where its data is to be put.
      hold: What is kept for the request, or None; set by whoever reads the inputs.
    """

    __slots__ = ("hold", "inputs", "outputs")

    def __init__(self, inputs: dict[str, RegionSlice], outputs: dict[str, RegionSlice]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.hold: Hold | None = None

    def copy(self) -> SharedTensors:
        """Return the same places, for a request of its own."""
        return SharedTensors(self.inputs, self.outputs)

    def release(self) -> None:
        """Note that the request needs the regions no more; idempotent."""
        hold, self.hold = self.hold, None
        if hold is not None:
            hold.release()


def shared_tensors(
    inputs: dict[str, RegionSlice], outputs: Iterable[RequestedOutput]
) -> SharedTensors | None:
    """Return which tensors lie in shared memory, or None if none does."""
    places = {output.name: output.place for output in outputs if output.place is not None}
    return SharedTensors(inputs, places) if inputs or places else None


def region_slice(given: Mapping[str, Any], tensor: str) -> RegionSlice | None:
    """Return where a tensor's parameters say that it lies, or None if in no region.

    Args:
      given: The tensor's parameters: name -> value as the transport parsed it.
      tensor: The tensor, for messages: "input 'x'".

    Raises:
      RequestError: INVALID_ARG; a value of the wrong kind, or one without the others it needs.
    """
    region = given.get("shared_memory_region")
    if "shared_memory_region" in given and type(region) is not str:
        raise invalid_argument(
            f"parameter 'shared_memory_region' of {tensor} must be a string, got {shown(region)}"
        )
    for key in ("shared_memory_offset", "shared_memory_byte_size"):
        if key not in given:
            continue
        value = given[key]
        if type(value) is not int or not 0 <= value < _UINT64_END:
            raise invalid_argument(
                f"parameter '{key}' of {tensor} must be an integer from 0 to 2**64 - 1, got "
                f"{shown(value)}"
            )
        if region is None:
            raise invalid_argument(
                f"parameter '{key}' of {tensor} needs 'shared_memory_region' beside it"
            )
    if region is None:
        return None
    if "shared_memory_byte_size" not in given:
        raise invalid_argument(
            f"{tensor} in shared memory region {quoted(region)} needs the parameter "
            "'shared_memory_byte_size'"
        )
    offset = given.get("shared_memory_offset", 0)
    return RegionSlice(region, offset, given["shared_memory_byte_size"])
