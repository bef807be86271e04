"""The "onnxruntime" backend: executes ONNX models on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final, final

import numpy as np
import onnxruntime as ort

from ..memory.cpu_quota import threads_per_instance, usable_cpus
from ..memory.gather import split_rows, stack_inputs, unpinned
from ..protocol.config_completion import check_signature, complete_from_signature
from ..protocol.dtypes import BYTES
from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Array, Tensor
from ..protocol.wording import shape_text
from .base import Batch, InstancePlace, ModelInstance, ModelSource
from .batch_tensors import BatchTensors, join_flat
from .model_outputs import OutputForm, forms_of, names_asked_for, state_forms_of
from .onnx_session import (
    SessionSettings,
    default_max_batch_size,
    instance_count,
    open_session,
    read_settings,
    run_through_values,
    short_text,
    signature_of,
)

PARKED_SESSIONS_MAX: Final = 4
"""Sessions kept between completing a configuration and loading; each holds a model's weights."""


@final
class OnnxBackend:
    """Makes ONNX models.

    Completing a configuration needs a session, and loading a big model takes seconds, so that
    session waits for the first instance that wants one just like it.
    """

    name = "onnxruntime"
    stacks_inputs = True
    cpu_instance_count = 2

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parked: dict[SessionSettings, ort.InferenceSession] = {}  # oldest first

    def complete_config(self, source: ModelSource, config: ModelConfig) -> ModelConfig:
        """Return the configuration with inputs, outputs and batching as the model has them.

        Raises:
          RequestError: the model cannot be loaded, or contradicts the configuration.
        """
        instances = instance_count(config, self.cpu_instance_count)
        settings = read_settings(source, config, threads_per_instance(usable_cpus(), instances))
        session = open_session(settings, source.name)
        completed = complete_from_signature(
            config,
            signature_of(session),
            default_max_batch_size=default_max_batch_size(source),
        )
        with self._lock:
            self._parked[settings] = session
            if len(self._parked) > PARKED_SESSIONS_MAX:
                del self._parked[next(iter(self._parked))]
        return completed

    def create_instance(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        """Return a new, not yet loaded instance."""
        return OnnxInstance(source, config, place, self)

    def take_session(self, settings: SessionSettings, model_name: str) -> ort.InferenceSession:
        """Return a session with these settings for the caller alone; callable from any thread.

        Raises:
          RequestError: the model cannot be loaded.
        """
        with self._lock:
            session = self._parked.pop(settings, None)
        return open_session(settings, model_name) if session is None else session


@final
class OnnxInstance:
    """One session of an ONNX model, on its thread."""

    def __init__(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace, backend: OnnxBackend
    ) -> None:
        self._source = source
        self._config = config
        self._place = place
        self._backend = backend
        self._version = str(source.version)
        self._batches = config.max_batch_size > 0
        self._session: ort.InferenceSession | None = None
        self._outputs: dict[str, OutputForm] = {}
        self._states: dict[str, OutputForm] = {}
        self._batch_tensors = BatchTensors(ModelConfig(), {})
        self._text_inputs: tuple[str, ...] = ()
        self._scalar_inputs: frozenset[str] = frozenset()
        self._has_bf16 = False

    def load(self) -> None:
        """Open the session and compare it with the configuration.

        Raises:
          RequestError: the instance is for a GPU, the model cannot be loaded, or the
            configuration has tensors that the model lacks or has differently.
        """
        if self._place.kind == "GPU":
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                f"model '{self._source.name}': instance '{self._place.name}' is for a GPU, but "
                "this ONNX Runtime executes on the CPU only; expected KIND_CPU",
            )
        settings = read_settings(self._source, self._config, self._place.cpu_threads)
        session = self._backend.take_session(settings, self._source.name)
        signature = signature_of(session)
        check_signature(self._config, signature)
        spec = ModelSpec.from_config(self._config, self._source.version)
        self._outputs = forms_of(spec)
        self._states = state_forms_of(spec)
        shapes = {name: form.model_shape for name, form in self._outputs.items()}
        self._batch_tensors = BatchTensors(self._config, shapes)
        self._text_inputs = tuple([i.name for i in signature.inputs if i.datatype == BYTES])
        self._scalar_inputs = frozenset([i.name for i in signature.inputs if not i.shape])
        tensors = [*signature.inputs, *signature.outputs]
        self._has_bf16 = any(tensor.datatype == "BF16" for tensor in tensors)
        self._session = session

    def unload(self) -> None:
        """Close the session."""
        self._session = None

    def execute(self, batch: Batch) -> None:
        """Stack the inputs, run the model once, and give each request its rows."""
        batch.compute_start_ns = perf_counter_ns()
        indices, texts = self._decode_texts(batch)
        requests = [batch.requests[index] for index in indices]
        batch.infer_start_ns = batch.infer_end_ns = batch.compute_end_ns = perf_counter_ns()
        if not requests:
            return
        names = self._names_to_run(requests)
        feed = self._gather(requests, texts)
        batch.infer_start_ns = perf_counter_ns()
        try:
            arrays = self._run(names, feed)
            batch.infer_end_ns = perf_counter_ns()
            columns = self._split(names, arrays, requests)
        except RequestError as error:
            for index in indices:
                batch.respond(index, self._failure(batch.requests[index], error.code, str(error)))
            batch.infer_end_ns = batch.compute_end_ns = perf_counter_ns()
            return
        for row, index in enumerate(indices):
            batch.respond(index, self._response(requests[row], columns, row))
        batch.compute_end_ns = perf_counter_ns()

    def _names_to_run(self, requests: Sequence[InferRequest]) -> list[str]:
        """Return the outputs that somebody in the batch wants, in the configuration's order.

        States come after them, unless they are outputs as well.
        """
        wanted: set[str] = set(self._states)
        for request in requests:
            asked = names_asked_for(request)
            if asked is None:
                wanted.update(self._outputs)
                break
            wanted |= asked
        names = [name for name in self._outputs if name in wanted]
        return names + [name for name in self._states if name not in self._outputs]

    def _decode_texts(self, batch: Batch) -> tuple[Sequence[int], dict[str, list[Array]]]:
        """Decode BYTES inputs, which ONNX Runtime takes as text.

        Returns:
          The indices of the requests whose text is UTF-8, and their arrays, by input. The other
          requests are answered with an error.
        """
        texts: dict[str, list[Array]] = {}
        if not self._text_inputs:
            return range(len(batch.requests)), texts
        indices: list[int] = []
        for index, request in enumerate(batch.requests):
            try:
                decoded = {
                    name: _texts_of(request.inputs[name].array)
                    for name in self._text_inputs
                    if name in request.inputs
                }
            except UnicodeDecodeError as error:
                message = (
                    f"model '{self._source.name}' takes BYTES inputs that are UTF-8 text, "
                    f"got byte {error.object[error.start]:#04x} at offset {error.start}"
                )
                failure = self._failure(request, ErrorCode.INVALID_ARG, message)
                batch.respond(index, failure)
                continue
            indices.append(index)
            for name, array in decoded.items():
                texts.setdefault(name, []).append(array)
        return indices, texts

    def _gather(
        self, requests: Sequence[InferRequest], texts: dict[str, list[Array]]
    ) -> dict[str, Array]:
        feed = self._batch_tensors.generate(requests)
        for name in requests[0].inputs:
            if name in self._batch_tensors.ragged:
                array = join_flat(texts.get(name) or [r.inputs[name].array for r in requests])
            elif name in texts:
                array = np.concatenate(texts[name])
            else:
                array = stack_inputs(requests, name)
            if not array.flags.aligned:  # a view on a request body may start at any byte
                array = array.copy()
            feed[name] = array.reshape(()) if name in self._scalar_inputs else array
        return feed

    def _run(self, names: list[str], feed: dict[str, Array]) -> list[Array]:
        assert self._session is not None, "execute() before load()"
        try:
            if self._has_bf16:
                return run_through_values(self._session, names, feed)
            arrays: list[Array] = self._session.run(names, feed)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base
            raise RequestError(
                ErrorCode.INTERNAL,
                f"model instance '{self._place.name}': ONNX Runtime failed: {short_text(error)}",
            ) from None
        return arrays

    def _split(
        self, names: list[str], arrays: list[Array], requests: Sequence[InferRequest]
    ) -> dict[str, list[Array]]:
        """Return, for each output, the rows of each request."""
        batch_sizes = [request.batch_size for request in requests]
        columns: dict[str, list[Array]] = {}
        rows = sum(batch_sizes)
        for name, result in zip(names, arrays, strict=True):
            form = self._outputs.get(name) or self._states[name]
            array = _bytes_of(result) if form.datatype == BYTES else result
            scattered = self._batch_tensors.scatter(name, array, requests)
            if scattered is not None:
                columns[name] = scattered
                continue
            if array.ndim == 0 and not self._batches:
                array = array.reshape(1)
            fits = array.ndim == len(form.model_shape)
            if not fits or (self._batches and len(array) != rows):
                expected = shape_text((rows, *form.model_shape[1:])) if self._batches else None
                raise RequestError(
                    ErrorCode.INTERNAL,
                    f"model '{self._source.name}': output '{name}' must have shape "
                    f"{expected or shape_text(form.model_shape)}, got {shape_text(array.shape)}",
                )
            columns[name] = split_rows(array, batch_sizes) if self._batches else [array]
        return columns

    def _response(
        self, request: InferRequest, columns: dict[str, list[Array]], row: int
    ) -> InferResponse:
        asked = names_asked_for(request)
        outputs: list[Tensor] = []
        for name, form in self._outputs.items():
            if name in columns and (asked is None or name in asked):
                array = columns[name][row]
                shape = form.to_client(array.shape)
                if shape != array.shape:
                    array = array.reshape(shape)
                outputs.append(Tensor(name, form.datatype, shape, array=array))
        response = InferResponse(self._source.name, self._version, request.id, outputs)
        if self._states:
            response.states = {
                name: _kept(form, columns[name][row]) for name, form in self._states.items()
            }
        return response

    def _failure(self, request: InferRequest, code: ErrorCode, message: str) -> InferResponse:
        error = RequestError(code, message, reason=FailureReason.BACKEND)
        return InferResponse(self._source.name, self._version, request.id, error=error)


def _kept(form: OutputForm, rows: Array) -> Tensor:
    array = unpinned(rows)
    return Tensor(form.name, form.datatype, array.shape, array=array)


def _texts_of(array: Array) -> Array:
    texts = np.empty(array.size, np.object_)
    texts[:] = [element.decode() for element in array.ravel().tolist()]
    return texts.reshape(array.shape)


def _bytes_of(array: Array) -> Array:
    elements = np.empty(array.size, np.object_)
    elements[:] = [text.encode() for text in array.ravel().tolist()]
    return elements.reshape(array.shape)
