"""The "function" backend: runs functions and classes that were made models, on instance threads.

They get arrays by parameter name, the rows of all requests in a batch one below the other, and
return arrays, which are cut into the rows of each request again. A generator is called once a
request, and each thing it yields is a response.

A model is either a function of this process (see `model_function.holding`), or its `model.py`
defines one under the name `model`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, final

import numpy as np

from ..memory.gather import split_rows, stack_inputs
from ..protocol.dtypes import BYTES, NUMPY_DTYPES, datatype_of
from ..protocol.errors import ErrorCode, FailureReason, RequestError, invalid_argument
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Array, Tensor, encode_bytes_elements
from ..protocol.wording import names_text, shape_text
from .base import Batch, InstancePlace, ModelInstance, ModelSource
from .batch_tensors import BatchTensors, join_flat
from .fault_log import FaultLog
from .fault_text import cut_to, text_of
from .model_function import ModelFunction, function_of, held_in
from .model_outputs import OutputForm, forms_of, names_asked_for, state_forms_of
from .python_loader import ModelCode

DEFAULT_FILENAME: Final = "model.py"
EXPORTED_NAME: Final = "model"
"""What the function is called in that file."""

_LOGGER: Final = logging.getLogger("tritrio.model")


@final
class FunctionBackend:
    """Makes models of functions; see the module docstring."""

    name = "function"
    stacks_inputs = True
    cpu_instance_count = 1

    def complete_config(self, source: ModelSource, config: ModelConfig) -> ModelConfig:  # noqa: ARG002 - the configuration was made with the function
        """Return the configuration as it is."""
        return config

    def create_instance(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        """Return a new, not yet loaded instance."""
        return FunctionInstance(source, config, place)


@final
class FunctionInstance:
    """One copy of a model that is a function, on its thread."""

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        self._source = source
        self._config = config
        self._place = place
        self._version = str(source.version)
        self._batches = config.max_batch_size > 0
        self._code = ModelCode(source, config.default_model_filename or DEFAULT_FILENAME)
        self._function: ModelFunction | None = None
        self._execute: Callable[..., Any] | None = None
        self._accepts: frozenset[str] | None = None
        self._outputs: dict[str, OutputForm] = {}
        self._states: dict[str, OutputForm] = {}
        self._batch_tensors: BatchTensors  # known after `load`
        self._faults = FaultLog()

    def load(self) -> None:
        """Find the function, compare it with the configuration, and make the object of a class.

        Raises:
          RequestError: there is no function, it does not fit the configuration, or it raised.
        """
        function = self._find()
        self._accepts = function.accepted_names(self._config)
        spec = ModelSpec.from_config(self._config, self._source.version)
        self._outputs = forms_of(spec)
        self._states = state_forms_of(spec)
        shapes = {name: form.model_shape for name, form in self._outputs.items()}
        self._batch_tensors = BatchTensors(self._config, shapes)
        execute = function.target
        if function.is_class:
            execute = self._code.run(f"{execute.__name__}()", execute)
        self._function, self._execute = function, execute

    def _find(self) -> ModelFunction:
        held = held_in(self._source.model_directory)
        if held is not None:
            return held
        found = function_of(getattr(self._code.load_module(), EXPORTED_NAME, None))
        if found is None:
            raise invalid_argument(
                f"model '{self._source.name}': expected its file to define '{EXPORTED_NAME}', a "
                "function or class with the decorator tritrio.model, got none"
            )
        return found

    def unload(self) -> None:
        """Call `close` of the object of a class; a fault of it is logged."""
        function, close = self._function, getattr(self._execute, "close", None)
        self._function = self._execute = None
        if function is not None and function.is_class and close is not None:
            try:
                if inspect.iscoroutinefunction(close):
                    close = partial(function.runner.call, close, {})
                self._code.run("close", close)
            except RequestError as error:
                _LOGGER.error("%s", error.message)  # noqa: TRY400 - it holds the model's frames
        self._code.close()

    def execute(self, batch: Batch) -> None:
        """Let the function execute the batch; every fault of it becomes an error response."""
        assert self._function is not None, "execute() before load()"
        batch.compute_start_ns = perf_counter_ns()
        indices = range(len(batch.requests))
        stacks = self._batches and not self._function.streams
        groups = [indices] if stacks else [[index] for index in indices]
        feeds = [self._feed([batch.requests[index] for index in group]) for group in groups]
        batch.infer_start_ns = perf_counter_ns()
        if self._function.streams:
            for index, feed in enumerate(feeds):
                self._stream(batch, index, feed)
            batch.infer_end_ns = perf_counter_ns()
        else:
            wanted = [_wanted([batch.requests[index] for index in group]) for group in groups]
            results = [
                self._run(self._call, feed, each) for feed, each in zip(feeds, wanted, strict=True)
            ]
            batch.infer_end_ns = perf_counter_ns()
            for group, result in zip(groups, results, strict=True):
                requests = [batch.requests[index] for index in group]
                for index, response in zip(group, self._responses(requests, result), strict=True):
                    batch.respond(index, response)
        batch.compute_end_ns = perf_counter_ns()

    def _feed(self, requests: Sequence[InferRequest]) -> dict[str, Array]:
        """Return what the function gets: read-only arrays, whether they were copied or not."""
        feed = self._batch_tensors.generate(requests)
        for name in requests[0].inputs:
            if name in self._batch_tensors.ragged:
                array = join_flat([request.inputs[name].array for request in requests])
            else:
                array = stack_inputs(requests, name)
            if not array.flags.aligned:  # a view on a request body may start at any byte
                array = array.copy()
            feed[name] = array.view()
            feed[name].flags.writeable = False
        if self._accepts is None:
            return feed
        return {name: array for name, array in feed.items() if name in self._accepts}

    def _run(self, call: Callable[..., Any], feed: Mapping[str, Array], *more: Any) -> Any:
        """Return what the function does; an exception of it as a `RequestError`."""

        def outcome() -> Any:
            try:
                return call(feed, *more)
            except RequestError as error:  # the function's own word to its client
                return RequestError(error.code, error.message, reason=FailureReason.BACKEND)

        try:
            return self._code.run(self._name, outcome)
        except RequestError as error:
            self._faults.note(error.message)
            return error

    @property
    def _name(self) -> str:
        assert self._function is not None
        return self._function.target.__name__

    def _call(self, feed: Mapping[str, Array], wanted: Callable[[], bool]) -> Any:
        assert self._function is not None
        assert self._execute is not None
        if self._function.is_async:
            return self._function.runner.call(self._execute, feed, wanted)
        return self._execute(**feed)

    def _iterate(
        self,
        feed: Mapping[str, Array],
        emit: Callable[[Any], bool],
        wanted: Callable[[], bool],
    ) -> None:
        assert self._function is not None
        assert self._execute is not None
        if self._function.is_async:
            self._function.runner.stream(self._execute, feed, emit, wanted)
            return
        generator = self._execute(**feed)
        try:
            for value in generator:
                if not emit(value):
                    break
        finally:
            generator.close()

    def _stream(self, batch: Batch, index: int, feed: Mapping[str, Array]) -> None:
        """Send what a generator yields, then the end of the responses to this request."""
        request = batch.requests[index]
        states: dict[str, Tensor] = {}
        fault: InferResponse | None = None

        def emit(value: Any) -> bool:
            nonlocal fault
            if request.cancelled:
                return False
            (response,) = self._responses([request], value)
            if response.error is not None:
                fault = response
                return False
            states.update(response.states or {})
            response.states = None  # only the end hands them on
            response.final = False
            batch.respond(index, response)
            return True

        error = self._run(self._iterate, feed, emit, _wanted([request]))
        if isinstance(error, RequestError):
            fault = self._failure(request, error)
        end = InferResponse(self._source.name, self._version, request.id)
        end.empty = True
        if self._states:
            end.states = states
        batch.respond(index, fault or end)

    def _responses(self, requests: Sequence[InferRequest], result: Any) -> list[InferResponse]:
        """Return the responses that a result of the function holds; a faulty one makes errors."""
        if isinstance(result, RequestError):
            return [self._failure(request, result) for request in requests]
        try:
            parts = {
                name: self._parts(name, value, requests)
                for name, value in self._named(result).items()
            }
            return [self._response(request, parts, row) for row, request in enumerate(requests)]
        except RequestError as error:
            fault = error
        except BaseException as error:  # noqa: BLE001 - what is returned may be the model's code
            fault = self._fault(f"returned what cannot be sent: {cut_to(text_of(error))}")
        self._faults.note(fault.message)
        return [self._failure(request, fault) for request in requests]

    def _named(self, result: Any) -> dict[str, Any]:
        """Return a result by name.

        Raises:
          RequestError: it has not exactly the outputs of the configuration.
        """
        names = [*self._outputs, *(name for name in self._states if name not in self._outputs)]
        if not isinstance(result, Mapping):
            values = result if isinstance(result, tuple) else (result,)
            if result is None or len(values) != len(names):
                got = "None" if result is None else f"{len(values)}"
                raise self._fault(
                    f"must return the {len(names)} outputs {names_text(names)} as a dict or in "
                    f"this order, got {got}"
                )
            return dict(zip(names, values, strict=True))
        if result.keys() != set(names):
            raise self._fault(
                f"must return a dict with the outputs {names_text(names)}, "
                f"got {names_text(map(str, result))}"
            )
        return dict(result)

    def _parts(self, name: str, value: Any, requests: Sequence[InferRequest]) -> list[Array]:
        """Return the part of each request of one output.

        Raises:
          RequestError: data type or shape are not those of the configuration.
        """
        form = self._outputs.get(name) or self._states[name]
        array = self._array(form, value)
        scattered = self._batch_tensors.scatter(name, array, requests)
        if scattered is not None:
            return scattered
        sizes = [request.batch_size for request in requests]
        expected = (sum(sizes), *form.model_shape[1:]) if self._batches else form.model_shape
        if array.ndim != len(expected) or any(
            want not in (-1, got) for want, got in zip(expected, array.shape, strict=True)
        ):
            raise self._fault(
                f"must return output '{name}' with shape {shape_text(expected)}, "
                f"got {shape_text(array.shape)}"
            )
        return split_rows(array, sizes) if self._batches else [array]

    def _array(self, form: OutputForm, value: Any) -> Array:
        """Return an array of the output's data type; lists and numbers become one."""
        if not isinstance(value, np.ndarray | np.generic):
            try:
                return np.asarray(value, form.dtype)
            except (TypeError, ValueError, OverflowError) as error:
                raise self._fault(
                    f"must return output '{form.name}' as {form.datatype}: {cut_to(str(error))}"
                ) from None
        array = np.asarray(value)
        found = datatype_of(array.dtype)
        if found != form.datatype:
            raise self._fault(
                f"must return output '{form.name}' as {form.datatype}, got {found or array.dtype}"
            )
        return array

    def _response(
        self, request: InferRequest, parts: Mapping[str, list[Array]], row: int
    ) -> InferResponse:
        asked = names_asked_for(request)
        outputs = [
            _tensor(form, parts[name][row])
            for name, form in self._outputs.items()
            if asked is None or name in asked
        ]
        response = InferResponse(self._source.name, self._version, request.id, outputs)
        if self._states:
            response.states = {
                name: _tensor(form, parts[name][row]) for name, form in self._states.items()
            }
        return response

    def _failure(self, request: InferRequest, error: RequestError) -> InferResponse:
        return InferResponse(self._source.name, self._version, request.id, error=error)

    def _fault(self, what: str) -> RequestError:
        return RequestError(
            ErrorCode.INTERNAL,
            f"model '{self._source.name}' version {self._version}: {self._name} {what}",
            reason=FailureReason.BACKEND,
        )


def _tensor(form: OutputForm, array: Array) -> Tensor:
    """Return a copy as it goes over the wire: the function may use its array again."""
    shape = form.to_client(array.shape)
    if form.datatype == BYTES:
        raw = encode_bytes_elements(array.ravel().tolist())
    else:
        raw = array.astype(NUMPY_DTYPES[form.datatype], copy=False).tobytes()
    return Tensor(form.name, form.datatype, shape, raw=raw)


def _wanted(requests: Sequence[InferRequest]) -> Callable[[], bool]:
    """Return what tells whether anybody waits for one of these requests."""
    return lambda: not all(request.cancelled for request in requests)
