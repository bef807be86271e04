"""A Python class with `prefill` and `step` as a causal model; docs/llm.md describes its face."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np

from ...protocol.errors import RequestError, invalid_argument
from ...protocol.pb.inference import ModelConfig
from ...protocol.tensors import Array
from ...protocol.wording import quoted, shape_text, shown
from ..base import InstancePlace, ModelSource
from ..python_loader import ModelCode, initialize_arguments
from .causal_model import model_fault, tokens_per_row
from .settings import MODEL_LEN_MAX, LlmSettings
from .steps import Decode, Prefill, RowCopy, RowSwap

_LOGGER: Final = logging.getLogger(__name__)
_TOKEN_BYTES_MAX: Final = 1 << 32
"""Most bytes of state of one token: more than any model takes."""


@final
class PythonCausalModel:
    """An object of the user's class; see `CausalModel`.

    Raises:
      RequestError: there is no such file or class, a method or an attribute is missing or wrong, or
        the code raised.
    """

    contiguous = False
    prefill_tokens_min = 1

    def __init__(
        self,
        source: ModelSource,
        config: ModelConfig,
        settings: LlmSettings,
        place: InstancePlace,
    ) -> None:
        self._class_name = settings.model_class
        self._code = ModelCode(source, settings.model)
        self._model: Any = None
        try:
            self._model = self._make(settings, initialize_arguments(source, config, place))
            self.vocabulary_size = self._number("vocabulary_size", 1, MODEL_LEN_MAX)
            self.kv_bytes_per_token = self._number("kv_bytes_per_token", 0, _TOKEN_BYTES_MAX, 0)
            context = self._number("context_length", 2, MODEL_LEN_MAX, 0) or None
            self.tokens_per_row = tokens_per_row(settings, context, self.kv_bytes_per_token)
        except BaseException:
            self.close()
            raise
        self.can_copy = callable(getattr(self._model, "copy", None))

    def _make(self, settings: LlmSettings, arguments: dict[str, str]) -> Any:
        model_class = getattr(self._code.load_module(), self._class_name, None)
        if not isinstance(model_class, type):
            raise invalid_argument(
                f"expected a class {self._class_name} in {settings.model}, got none"
            )
        for name in ("prefill", "step"):
            if not callable(getattr(model_class, name, None)):
                raise invalid_argument(
                    f"expected a method {quoted(name)} in {self._class_name}, got none"
                )
        model = self._code.run(f"{self._class_name}()", model_class)
        if hasattr(model, "initialize"):
            self._code.run("initialize", model.initialize, arguments)
        return model

    def _number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = getattr(self._model, name, default)
        if isinstance(value, np.integer):  # a part of the shape of weights, for example
            value = int(value)
        if type(value) is not int or (value != default and not least <= value <= most):
            raise invalid_argument(
                f"expected {self._class_name} to have an attribute {quoted(name)}, a whole number "
                f"from {least} to {most}, got {shown(value)}"
            )
        return value

    def swap(self, swap: RowSwap) -> None:
        """Not called: rows may lie apart."""
        raise AssertionError(swap)

    def copy(self, copy: RowCopy) -> None:
        """Put the beginning of one row into another one."""
        self._code.run("copy", self._model.copy, copy.source, copy.target, copy.tokens)

    def decode(self, decodes: Sequence[Decode], idle_rows: Mapping[int, int]) -> Array:  # noqa: ARG002 - rows may lie apart
        """Add one token to some rows; see `CausalModel`."""
        columns = [(decode.row, decode.token, decode.past) for decode in decodes]
        rows, tokens, past = np.array(columns, np.int64).T.copy()
        logits = self._code.run("step", self._model.step, rows, tokens, past)
        return self._checked("step", logits, (len(decodes), self.vocabulary_size))

    def prefill(self, prefill: Prefill) -> Array:
        """Add tokens to one row; see `CausalModel`."""
        tokens = np.array(prefill.tokens, np.int64)
        logits = self._code.run("prefill", self._model.prefill, prefill.row, tokens, prefill.past)
        return self._checked("prefill", logits, (self.vocabulary_size,))[None]

    def close(self) -> None:
        """Call the model's `finalize` and let go of its code; a fault of it is logged."""
        model, self._model = self._model, None
        if hasattr(model, "finalize"):
            try:
                self._code.run("finalize", model.finalize)
            except RequestError as error:
                _LOGGER.error("%s", error.message)  # noqa: TRY400 - it holds the model's frames
        self._code.close()

    def _checked(self, method: str, logits: Any, shape: tuple[int, ...]) -> Array:
        try:
            array = np.asarray(logits, np.float32)
        except (TypeError, ValueError):
            array = None
        if array is None or array.shape != shape:
            got = f"shape {shape_text(array.shape)}" if array is not None and array.ndim else ""
            raise model_fault(
                f"expected {quoted(method)} of {self._class_name} to return logits of shape "
                f"{shape_text(shape)}, got {got or type(logits).__name__}"
            )
        return array
