"""Warm-up: the executions that an instance does after its load, before its model is READY.

A sample of the configuration is `batch_size` requests of one row each, executed together and
`count` times. They go to the instance itself, past every scheduler and every statistic. A fault
in any of them fails the load.
Source: Triton model_config.proto, ModelWarmup.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np

from ..protocol.dtypes import BYTES, ITEM_SIZE_BYTES, NUMPY_DTYPES
from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.model_spec import ModelSpec, datatype_name
from ..protocol.pb.inference import ModelConfig, ModelWarmup, ModelWarmupInput
from ..protocol.request_rules import bytes_elements_fault, validate
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.sequence_tensors import SequenceTensors
from ..protocol.tensors import Shape, Tensor
from ..protocol.wording import quoted, shape_text
from .base import Batch, ModelInstance
from .device_thread import wait_attending
from .fault_text import cut_to, text_of

WARMUP_DIRECTORY: Final = "warmup"
"""Where the data files of samples lie in a model's directory."""

INPUT_BYTES_MAX: Final = 2**31
"""Largest input of a sample, in bytes: no request over gRPC, whose messages have a 31-bit length,
can hold a larger one."""

FINAL_RESPONSES_MAX_S: Final = 60.0
"""How long a decoupled model may take to end its responses to the requests of one execution, in
seconds. Without a bound, a model that forgets its final flag would load for ever."""

_LENGTH_BYTES: Final = 4
"""Bytes of an empty BYTES element: its length."""

_SEED: Final = 0
"""Random data is the same at each load, so that a fault which it causes comes back."""

_LOGGER: Final = logging.getLogger("tritrio.warmup")


@final
@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One sample, checked and with its data; shared by all instances of a model version.

    Attributes:
      label: What errors call it: model and sample.
      requests: What is executed together; at least one, validated and complete. Copied for each
        execution, their tensors are shared and read-only.
      count: How often; at least 1.
    """

    label: str
    requests: tuple[InferRequest, ...]
    count: int


def warmup_samples(
    config: ModelConfig,
    spec: ModelSpec,
    model_directory: Path,
    initial_files: Mapping[str, bytes],
) -> list[WarmupSample]:
    """Return the samples of a model, in order; reads their files, so it blocks.

    Args:
      config: The final configuration.
      spec: Made of it.
      model_directory: `<repository>/<model>`.
      initial_files: Content of the files of a sequence model's initial states; see
        `SequenceTensors`.

    Raises:
      RequestError: INVALID_ARG; names the model, the sample, the input and what is wrong with it.
    """
    random = np.random.default_rng(_SEED)
    sequences = SequenceTensors(config, initial_files) if spec.sequences else None
    samples: list[WarmupSample] = []
    for index, warmup in enumerate(config.model_warmup):
        label = f"model '{config.name}': model_warmup {quoted(warmup.name or str(index))}"
        if warmup.batch_size == 0:
            _LOGGER.warning("%s has the batch_size 0 and is skipped", label)
            continue
        try:
            request, overrides = _request(config, spec, warmup, model_directory, random)
        except RequestError as error:
            raise RequestError(error.code, f"{label}: {error.message}") from None
        requests = [_copy(request) for _ in range(warmup.batch_size)]
        for number, each in enumerate(requests, 1):
            if sequences is not None:
                each.sequence_id = _sequence_id(number, spec)
                states = sequences.initial_states()
                sequences.complete(each, start=True, end=True, states=states)
            each.inputs.update(overrides)
        samples.append(WarmupSample(label, tuple(requests), max(1, warmup.count)))
    return samples


def run_warmup(
    instance: ModelInstance, samples: Sequence[WarmupSample], *, decoupled: bool
) -> None:
    """Execute all samples on a loaded instance; called on its thread.

    Args:
      instance: As after `load`.
      samples: From `warmup_samples`.
      decoupled: Whether a request may have any number of responses; then waits for their ends.

    Raises:
      RequestError: a request was answered with an error or not at all, or the execution raised;
        names model, sample and error.
    """
    for sample in samples:
        for _ in range(sample.count):
            try:
                _execute(instance, [_copy(request) for request in sample.requests], decoupled)
            except RequestError as error:
                raise RequestError(error.code, f"{sample.label}: {error.message}") from None
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model may raise
                raise RequestError(
                    ErrorCode.INTERNAL,
                    f"{sample.label}: the execution raised {type(error).__name__}: "
                    f"{cut_to(text_of(error))}",
                ) from None


def _request(
    config: ModelConfig,
    spec: ModelSpec,
    warmup: ModelWarmup,
    model_directory: Path,
    random: np.random.Generator,
) -> tuple[InferRequest, dict[str, Tensor]]:
    """Return what a client would send, checked, and the inputs given in place of the server's."""
    most = max(1, config.max_batch_size)
    if warmup.batch_size > most:
        raise invalid_argument(f"batch_size must be at most {most}, got {warmup.batch_size}")
    batch = (1,) if config.max_batch_size > 0 else ()
    tensors = {
        name: _tensor(name, given, batch, model_directory, random)
        for name, given in warmup.inputs.items()
    }
    server_side = _server_side_inputs(config)
    request = InferRequest(spec.name, spec.version)
    request.sequence_id = _sequence_id(1, spec)
    request.inputs = {name: t for name, t in tensors.items() if name not in server_side}
    validate(request, spec)
    return request, {name: t for name, t in tensors.items() if name in server_side}


def _sequence_id(number: int, spec: ModelSpec) -> int | str:
    """Return the id of a sequence in the form the model wants; 0 where it has no sequences."""
    if not spec.sequences:
        return 0
    is_text = spec.correlation_id is not None and spec.correlation_id[1] == BYTES
    return str(number) if is_text else number


def _server_side_inputs(config: ModelConfig) -> set[str]:
    """Return the inputs that no client sends, but a sample may give."""
    sequence = config.sequence_batching
    if sequence is None:
        return set()
    controls = {tensor.name for tensor in sequence.control_input}
    return controls.union(state.input_name for state in sequence.state)


def _copy(request: InferRequest) -> InferRequest:
    """Return a new request of one row that shares its tensors with this one."""
    copy = request.without_inputs(request.model_name, request.model_version)
    copy.inputs = request.inputs.copy()
    copy.spec = request.spec
    return copy


def _tensor(
    name: str,
    given: ModelWarmupInput,
    batch: Shape,
    model_directory: Path,
    random: np.random.Generator,
) -> Tensor:
    """Return one input of a sample."""
    label = f"input {quoted(name)}"
    dims = tuple(given.dims)
    if any(dim < 0 for dim in dims):
        raise invalid_argument(f"{label} must have fixed dims, got {shape_text(dims)}")
    datatype = datatype_name(given.data_type)
    if datatype not in NUMPY_DTYPES:
        raise invalid_argument(f"{label} has no data_type that can be served")
    count = math.prod(dims)
    byte_size = count * (ITEM_SIZE_BYTES[datatype] or _LENGTH_BYTES)
    if byte_size > INPUT_BYTES_MAX:
        raise invalid_argument(
            f"{label} must have at most {INPUT_BYTES_MAX} bytes, got {byte_size} for dims "
            f"{shape_text(dims)} of {datatype}"
        )
    if given.input_data_file is not None:
        raw = _file_data(label, model_directory, given.input_data_file, datatype, count)
    elif given.zero_data is not None or (given.random_data is not None and datatype == BYTES):
        raw = bytes(byte_size)  # for BYTES, empty strings
    elif given.random_data is not None:
        raw = _random_data(datatype, count, random)
    else:
        raise invalid_argument(
            f"{label}: expected zero_data, random_data or input_data_file, got none of them"
        )
    return Tensor(name, datatype, (*batch, *dims), raw=raw)


def _random_data(datatype: str, count: int, random: np.random.Generator) -> bytes:
    """Return bytes of random elements: floats from 0 to 1, whole numbers of any value."""
    dtype = NUMPY_DTYPES[datatype]
    if datatype == "BOOL":
        return random.integers(0, 2, count, np.uint8).tobytes()
    if dtype.kind in "iu":
        return random.bytes(count * dtype.itemsize)
    return random.random(count, np.float32).astype(dtype).tobytes()


def _file_data(label: str, model_directory: Path, name: str, datatype: str, count: int) -> bytes:
    """Return the raw form of an input from its file, which may hold more."""
    relative = os.path.normpath(f"{WARMUP_DIRECTORY}/{name}")
    if "\0" in name or os.path.isabs(name) or relative.split(os.sep, 1)[0] == os.pardir:
        raise invalid_argument(
            f"{label}: expected an input_data_file inside the model's directory, got {quoted(name)}"
        )
    byte_size = count * ITEM_SIZE_BYTES[datatype]
    path = model_directory / relative
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise invalid_argument(f"{label}: {quoted(relative)} must be a regular file")
        with path.open("rb") as file:
            data = file.read(INPUT_BYTES_MAX if datatype == BYTES else byte_size)
    except OSError as error:
        raise invalid_argument(
            f"{label}: file {quoted(relative)} cannot be read: {error.strerror}"
        ) from None
    if datatype == BYTES:
        fault = bytes_elements_fault(data, count)
        if fault is not None:
            raise invalid_argument(f"{label}: file {quoted(relative)}: {fault}")
    elif len(data) < byte_size:
        raise invalid_argument(
            f"{label}: expected {byte_size} bytes in file {quoted(relative)}, got {len(data)}"
        )
    return data


def _execute(instance: ModelInstance, requests: list[InferRequest], decoupled: bool) -> None:
    """Execute one batch and raise the first error among its responses."""
    batch = Batch(requests)
    if decoupled:
        responses = _Responses(len(requests))
        batch.post = responses.post
        instance.execute(batch)
        responses.wait()
        return
    instance.execute(batch)
    for index, response in enumerate(batch.responses):
        if response is None and index not in batch.rescheduled:
            raise RequestError(ErrorCode.INTERNAL, "the model gave no response")
        if response is not None and response.error is not None:
            raise response.error


@final
class _Responses:
    """Takes the responses of a decoupled model, on any thread."""

    def __init__(self, count: int) -> None:
        self._open = set(range(count))
        self._error: RequestError | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def post(self, index: int, response: InferResponse) -> None:
        with self._lock:
            if response.final:
                self._open.discard(index)
            self._error = self._error or response.error
            if self._error is not None or not self._open:
                self._ended.set()

    def wait(self) -> None:
        ended = wait_attending(self._ended, FINAL_RESPONSES_MAX_S)
        with self._lock:
            if self._error is not None:
                raise self._error
            if not ended:
                raise RequestError(
                    ErrorCode.INTERNAL,
                    f"expected the final response to each request within {FINAL_RESPONSES_MAX_S:g}"
                    f" s, {len(self._open)} are missing",
                )
