"""What the backends for tests share: checks of configurations, delays, responses.

Their models have no files: everything is in the configuration. They exist because repositories of
users and of tools name them.
Source: the documented test backends of Triton; each module names its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Final, TypeAlias, final

from ..protocol.errors import ErrorCode, FailureReason, RequestError, invalid_argument
from ..protocol.model_spec import ModelSpec, datatype_name
from ..protocol.pb.inference import ModelConfig, ModelInput, ModelOutput
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Array, Tensor
from ..protocol.wording import shape_text
from .base import InstancePlace, ModelInstance, ModelSource
from .model_outputs import forms_of, names_asked_for
from .parameters import number_parameter

DELAY_MAX_S: Final = 3600
"""Longest delay a configuration may ask for: far more than any test waits, but not forever."""

CANCEL_POLL_S: Final = 1 / 32
"""How soon a delay notices that nobody waits any more, in seconds: a request that is cancelled
wakes no thread up, and looking more often would cost more than the delay is worth."""

MakeInstance: TypeAlias = Callable[[ModelSource, ModelConfig, InstancePlace], ModelInstance]


@final
class FilelessBackend:
    """Makes test models of one kind.

    Args:
      name: The name in the `backend` field.
      make_instance: Makes a new, not yet loaded instance.
    """

    stacks_inputs = False
    cpu_instance_count = 1

    def __init__(self, name: str, make_instance: MakeInstance) -> None:
        self.name = name
        self._make_instance = make_instance

    def complete_config(self, source: ModelSource, config: ModelConfig) -> ModelConfig:  # noqa: ARG002 - there are no files
        """Return the configuration as it is."""
        return config

    def create_instance(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        """Return a new instance."""
        return self._make_instance(source, config, place)


def check_tensors(
    config: ModelConfig, kind: str, inputs: Mapping[str, str], outputs: Mapping[str, str]
) -> None:
    """Check that a model has these vectors and no others.

    Args:
      config: The model's configuration.
      kind: The name of its backend.
      inputs: Name -> data type.
      outputs: Name -> data type.

    Raises:
      RequestError: it has others; names those expected and those found.
    """
    for what, wanted, got in (("input", inputs, config.input), ("output", outputs, config.output)):
        vectors = {
            tensor.name: datatype_name(tensor.data_type)
            for tensor in got
            if len(tensor.dims) == 1 and tensor.reshape is None
        }
        if vectors != wanted or len(got) != len(wanted):
            expected = ", ".join(f"'{name}' {datatype}" for name, datatype in wanted.items())
            raise invalid_argument(
                f"model '{config.name}': the backend '{kind}' wants the {what} vectors {expected} "
                f"without reshape, got {', '.join(map(_described, got)) or 'none'}"
            )


def _described(tensor: ModelInput | ModelOutput) -> str:
    reshaped = " with reshape" if tensor.reshape is not None else ""
    datatype = datatype_name(tensor.data_type)
    return f"'{tensor.name}' {datatype} {shape_text(tuple(tensor.dims))}{reshaped}"


def check_single(config: ModelConfig, kind: str, *names: str) -> None:
    """Check that inputs have one element.

    Raises:
      RequestError: one has not; names it and its dims.
    """
    for tensor in config.input:
        if tensor.name in names and list(tensor.dims) != [1]:
            raise invalid_argument(
                f"model '{config.name}': the backend '{kind}' wants dims [1] for the input "
                f"'{tensor.name}', got {shape_text(tuple(tensor.dims))}"
            )


def check_controls(config: ModelConfig, kind: str, names: Sequence[str]) -> None:
    """Check that a model of sequences gets these control tensors.

    Raises:
      RequestError: some are not configured; names those expected and those found.
    """
    sequence = config.sequence_batching
    got = [] if sequence is None else [tensor.name for tensor in sequence.control_input]
    if not set(names).issubset(got):
        raise invalid_argument(
            f"model '{config.name}': the backend '{kind}' wants sequence_batching with the control "
            f"inputs {', '.join(names)}, got {', '.join(got) or 'none'}"
        )


def check_decoupled(config: ModelConfig, kind: str) -> None:
    """Check that a model may answer a request more than once.

    Raises:
      RequestError: it may not.
    """
    policy = config.model_transaction_policy
    if policy is None or not policy.decoupled:
        raise invalid_argument(
            f"model '{config.name}': the backend '{kind}' wants "
            "model_transaction_policy { decoupled: true }, got none"
        )


def execute_delay_s(config: ModelConfig) -> float:
    """Return what `execute_delay_ms` says, in seconds.

    Raises:
      RequestError: it is no whole number, or too large.
    """
    return number_parameter(config, "execute_delay_ms", range(DELAY_MAX_S * 1000 + 1), 0) / 1000


@final
class Pauses:
    """The delays of one model instance; they end early when nobody waits for their end."""

    __slots__ = ("_ended",)

    def __init__(self) -> None:
        self._ended = threading.Event()

    def end(self) -> None:
        """End all delays, now and from now on; callable from any thread."""
        self._ended.set()

    def wait(self, duration_s: float, requests: Sequence[InferRequest] | None = None) -> bool:
        """Wait; return whether the whole time passed and somebody still waits.

        Args:
          duration_s: How long, in seconds.
          requests: Whom the delay is for; it ends once all are cancelled. None is for nobody.
        """
        end_s = perf_counter() + duration_s
        while requests is None or not all(request.cancelled for request in requests):
            left_s = end_s - perf_counter()
            if left_s <= 0:
                return not self._ended.is_set()
            if self._ended.wait(left_s if requests is None else min(left_s, CANCEL_POLL_S)):
                return False
        return False


@final
class Answers:
    """Makes the responses of one model.

    Args:
      source: Where the model lies.
      config: Checked with `check_tensors`.
    """

    def __init__(self, source: ModelSource, config: ModelConfig) -> None:
        spec = ModelSpec.from_config(config, source.version)
        self._name = source.name
        self._version = spec.version
        self._forms = forms_of(spec)

    def answer(
        self, request: InferRequest, arrays: Mapping[str, Array], *, final: bool = True
    ) -> InferResponse:
        """Return a response with those of the outputs that the client asked for.

        Args:
          request: The request.
          arrays: Output name -> elements; owned by the response from now on.
          final: Whether it is the last one.
        """
        asked = names_asked_for(request)
        outputs = [
            Tensor(name, self._forms[name].datatype, array.shape, array=array)
            for name, array in arrays.items()
            if asked is None or name in asked
        ]
        return InferResponse(self._name, self._version, request.id, outputs, final=final)

    def end(self, request: InferRequest) -> InferResponse:
        """Return the bare end of the responses of a decoupled model."""
        response = InferResponse(self._name, self._version, request.id)
        response.empty = True
        return response

    def failure(
        self, request: InferRequest, code: ErrorCode, message: str, *, final: bool = True
    ) -> InferResponse:
        """Return an error; the model's name is put in front of the message."""
        error = RequestError(code, f"model '{self._name}': {message}", reason=FailureReason.BACKEND)
        return InferResponse(self._name, self._version, request.id, error=error, final=final)
