"""Which requests can be stacked: those with equal keys.  Pure."""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b
from typing import Any, final

from ..protocol.wording import shape_text
from .messages import Infer

DIGEST_BYTES = 16
"""Of the contents of a shape tensor: two that differ do not have the same digest in practice."""


@final
class BatchKeys:
    """Makes the keys of one model version, and says in words how two of them differ.

    Args:
      shape_inputs: Inputs that must have equal shapes within a batch.
      content_inputs: Inputs that must be equal within a batch: shape tensors.
      optional_inputs: Inputs that every request of a batch must have, or none.

    Attributes:
      matter: Whether there can be different keys at all.
    """

    def __init__(
        self,
        shape_inputs: tuple[str, ...],
        content_inputs: tuple[str, ...],
        optional_inputs: tuple[str, ...],
    ) -> None:
        self._shape_inputs = shape_inputs
        self._content_inputs = content_inputs
        self._optional_inputs = optional_inputs
        self.matter = bool(shape_inputs or content_inputs or optional_inputs)

    def key(self, infer: Infer) -> Hashable:
        """Equal for requests that can be stacked; the batch dimension does not count."""
        inputs = infer.request.inputs
        shapes = [inputs[name].shape[1:] if name in inputs else None for name in self._shape_inputs]
        contents = [
            blake2b(inputs[name].raw, digest_size=DIGEST_BYTES).digest() if name in inputs else None
            for name in self._content_inputs
        ]
        return (*shapes, *contents, *[name in inputs for name in self._optional_inputs])

    def difference(self, batch_key: Hashable, next_key: Hashable) -> str:
        """Return in words what keeps a request out of a batch."""
        assert isinstance(batch_key, tuple)
        assert isinstance(next_key, tuple)
        names = (*self._shape_inputs, *self._content_inputs, *self._optional_inputs)
        for name, ours, theirs in zip(names, batch_key, next_key, strict=True):
            if ours == theirs:
                continue
            if isinstance(ours, tuple) and isinstance(theirs, tuple):
                return (
                    f"input '{name}' of the next request has the shape {shape_text(theirs)}, of "
                    f"the batch {shape_text(ours)}; with allow_ragged_batch they could differ"
                )
            if isinstance(ours, bytes) and isinstance(theirs, bytes):
                return f"shape tensor '{name}' of the next request has other values"
            return f"optional input '{name}' is not in all of the requests"
        raise AssertionError("equal keys keep nothing apart")

    def describe(self) -> dict[str, Any]:
        """Return the inputs that matter, as JSON values."""
        return {
            "equal_shape_inputs": list(self._shape_inputs),
            "equal_content_inputs": list(self._content_inputs),
            "optional_inputs": list(self._optional_inputs),
        }
