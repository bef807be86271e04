"""The "python" backend: runs `TritonPythonModel` classes in this process, on instance threads.

A request costs a wrapper and a response, no copy between processes. What a model returns is
checked against its configuration, and each fault is answered with one sentence that names it.
`parameters` of the configuration: `UNCHECKED_OUTPUTS` = "yes" lets outputs of another data type or
rank pass as they are, as servers do that never compare them.
Source: the documented interface of Triton's Python backend.
"""

# ruff: noqa: SLF001 - the backend is the other half of pb_objects

from __future__ import annotations

import inspect
import json
import logging
from time import perf_counter_ns
from typing import Any, Final, final

import numpy as np

from ..protocol.config_json import model_config_to_dict
from ..protocol.dtypes import BYTES, NUMPY_DTYPES, datatype_of
from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Tensor as ServerTensor, encode_bytes_elements
from ..protocol.wording import shape_text
from .base import Batch, InstancePlace, ModelInstance, ModelSource
from .fault_text import cut_to, text_of
from .model_outputs import OutputForm, forms_of, names_asked_for
from .parameters import yes_parameter
from .pb_model_config import ModelConfig as ConfigBuilder
from .pb_objects import InferenceRequest, InferenceResponse
from .pb_tensor import Tensor, TritonModelException
from .python_loader import MODEL_CLASS, ModelCode

DEFAULT_FILENAME: Final = "model.py"

_LOGGER: Final = logging.getLogger("tritrio.model")


@final
class PythonBackend:
    """Makes Python models; see the module docstring."""

    name = "python"
    stacks_inputs = True  # the models themselves do, and count on equal shapes
    cpu_instance_count = 1

    def complete_config(self, source: ModelSource, config: ModelConfig) -> ModelConfig:
        """Return what the model's `auto_complete_config` makes of the configuration.

        Raises:
          RequestError: the code cannot be imported, or that function raised or returned
            something else than a `pb_utils.ModelConfig`.
        """
        code = ModelCode(source, config.default_model_filename or DEFAULT_FILENAME)
        try:
            complete = getattr(code.load_class(), "auto_complete_config", None)
            if complete is None:
                return config
            builder = code.run("auto_complete_config", complete, ConfigBuilder(config))
        finally:
            code.close()
        if not isinstance(builder, ConfigBuilder):
            raise _fault(
                f"model '{source.name}': auto_complete_config must return the "
                f"pb_utils.ModelConfig it was given, got {type(builder).__name__}"
            )
        completed: ModelConfig = builder.config
        return completed

    def create_instance(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        """Return a new, not yet loaded instance."""
        return PythonModelInstance(source, config, place)


@final
class PythonModelInstance:
    """One object of a model's class, on its thread."""

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        self._source = source
        self._config = config
        self._place = place
        self._version = str(source.version)
        self._outputs: dict[str, OutputForm] = {}
        self._output_names: tuple[str, ...] = ()
        self._checks_outputs = True
        policy = config.model_transaction_policy
        self.decoupled = policy is not None and policy.decoupled
        self._code = ModelCode(source, config.default_model_filename or DEFAULT_FILENAME)
        self._model: Any = None
        self._faults = 0  # batches that failed as a whole

    def load(self) -> None:
        """Import the code, make the model object and call its `initialize`.

        Raises:
          RequestError: the file or class is missing, has no `execute`, or raised.
        """
        self._checks_outputs = not yes_parameter(self._config, "UNCHECKED_OUTPUTS")
        self._outputs = forms_of(ModelSpec.from_config(self._config, self._source.version))
        self._output_names = tuple(self._outputs)
        model_class = self._code.load_class()
        execute = getattr(model_class, "execute", None)
        if not callable(execute) or inspect.iscoroutinefunction(execute):
            got = "an async one, which is not supported" if callable(execute) else "none"
            raise _fault(
                f"model '{self._source.name}': expected a method 'execute' in "
                f"{MODEL_CLASS}, got {got}"
            )
        model = self._code.run(f"{MODEL_CLASS}()", model_class)
        if hasattr(model, "initialize"):
            self._code.run("initialize", model.initialize, self._arguments())
        self._model = model

    def unload(self) -> None:
        """Call the model's `finalize` and let go of its code; a fault of it is logged."""
        model, self._model = self._model, None
        if hasattr(model, "finalize"):
            try:
                self._code.run("finalize", model.finalize)
            except RequestError as error:
                _LOGGER.error("%s", error.message)  # noqa: TRY400 - it holds the model's frames
        self._code.close()

    def execute(self, batch: Batch) -> None:
        """Let the model execute the batch; every fault of it becomes an error response."""
        batch.compute_start_ns = perf_counter_ns()
        answering = _Answering(self, batch)
        wrap, names = InferenceRequest._received, self._output_names
        requests = [
            wrap(request, index, answering, names) for index, request in enumerate(batch.requests)
        ]
        batch.infer_start_ns = perf_counter_ns()
        responses: Any = None
        fault: str | None = None
        try:
            responses = self._model.execute(requests.copy())
        except BaseException as error:  # noqa: BLE001 - a model may raise anything, also SystemExit
            fault = f"raised {self._code.describe(error)}"
        batch.infer_end_ns = perf_counter_ns()
        if fault is None:
            fault = self._fault_of_list(responses, len(requests))
        if fault is not None:
            message = f"model instance '{self._place.name}': execute {fault}"
            self._log_fault(message)
            answering.fail_open(requests, message)
        elif not self.decoupled:
            self._respond(batch, requests, responses, answering)
        batch.compute_end_ns = perf_counter_ns()

    def _log_fault(self, message: str) -> None:
        """Tell the operator, ever more rarely: a broken model fails as often as it is asked."""
        self._faults += 1
        if self._faults & (self._faults - 1) == 0:
            _LOGGER.error("%s (failed batches so far: %d)", message, self._faults)

    def _fault_of_list(self, responses: Any, count: int) -> str | None:
        if self.decoupled:
            if responses is None:
                return None
            return (
                "must return None, since the model is decoupled, "
                f"got an object of type {type(responses).__name__}"
            )
        if responses is None:  # answers came, or should have come, through response senders
            return None
        if not isinstance(responses, list):
            return f"must return a list of responses, got {type(responses).__name__}"
        if len(responses) != count:
            return f"must return a response for each of {count} requests, got {len(responses)}"
        for response in responses:
            if response is not None and type(response) is not InferenceResponse:
                return (
                    "must return a list of InferenceResponse objects, "
                    f"got one of type {type(response).__name__}"
                )
        return None

    def _respond(
        self,
        batch: Batch,
        requests: list[InferenceRequest],
        responses: list[InferenceResponse | None] | None,
        answering: _Answering,
    ) -> None:
        if responses is None:
            responses = [None] * len(requests)
        for index, response in enumerate(responses):
            sender = requests[index]._sender
            if sender is not None:
                sender._close()
            if batch.responses[index] is None:
                if response is None:
                    answering.fail(
                        index,
                        f"model instance '{self._place.name}': execute must return a response for "
                        "each request or send it before it returns, got none for this one",
                    )
                else:
                    batch.respond(index, self.to_server(batch.requests[index], response))

    def to_server(self, request: InferRequest, response: InferenceResponse) -> InferResponse:
        """Return the server's form of a model's response; a faulty one becomes an error."""
        failed = response._error
        if failed is not None:
            return self.failure(request, failed._message, failed._code)
        asked = names_asked_for(request)
        outputs: dict[str, ServerTensor] = {}
        for tensor in response._tensors:
            name = tensor._name
            form = self._outputs.get(name)
            if form is None or name in outputs:
                what = "is not in its configuration" if form is None else "came twice"
                return self.failure(request, f"model '{self._source.name}': output '{name}' {what}")
            if asked is None or name in asked:
                try:
                    outputs[name] = self._to_server_tensor(tensor, form)
                except BaseException as error:  # noqa: BLE001 - elements of BYTES are the model's code
                    return self.failure(
                        request,
                        f"model '{self._source.name}': output '{name}' {text_of(error)}",
                    )
        answer = InferResponse(self._source.name, self._version, request.id, list(outputs.values()))
        if response._parameters is not None:
            answer.parameters = response._parameters
        return answer

    def _to_server_tensor(self, tensor: Tensor, form: OutputForm) -> ServerTensor:
        array = np.asarray(tensor.as_numpy())  # a matrix has other methods
        datatype = form.datatype
        if array.dtype != form.dtype:
            found = datatype_of(array.dtype)
            if found is None or (self._checks_outputs and found != datatype):
                raise ValueError(f"must be {datatype}, got {found or array.dtype}")
            datatype = found
            if datatype != BYTES:
                array = array.astype(NUMPY_DTYPES[datatype])  # of another byte order
        shape = array.shape
        rank = len(form.model_shape)
        if len(shape) == rank:
            shape = form.to_client(shape)
        elif self._checks_outputs:
            raise ValueError(
                f"must have {rank} dimensions as in {shape_text(form.model_shape)}, "
                f"got shape {shape_text(shape)}"
            )
        # Copied, because the model may use its array again before this response is written; and
        # copied into what goes over the wire, so that the event loop need not convert it.
        if datatype == BYTES:
            raw = encode_bytes_elements(array.ravel().tolist())
        else:
            raw = array.tobytes()
        return ServerTensor(form.name, datatype, shape, raw=raw)

    def failure(
        self, request: InferRequest, message: str, code: ErrorCode = ErrorCode.INTERNAL
    ) -> InferResponse:
        """Return the error response to a request; a message without end is cut."""
        error = RequestError(code, cut_to(message), reason=FailureReason.BACKEND)
        return InferResponse(self._source.name, self._version, request.id, error=error)

    def _arguments(self) -> dict[str, str]:
        return {
            "model_config": json.dumps(model_config_to_dict(self._config)),
            "model_instance_kind": self._place.kind,
            "model_instance_device_id": str(self._place.device_id),
            "model_instance_name": self._place.name,
            "model_name": self._source.name,
            "model_repository": str(self._source.model_directory),
            "model_version": self._version,
        }


@final
class _Answering:
    """One batch of a Python model, as its response senders see it."""

    __slots__ = ("_batch", "_instance", "decoupled")

    def __init__(self, instance: PythonModelInstance, batch: Batch) -> None:
        self._instance = instance
        self._batch = batch
        self.decoupled = instance.decoupled

    def send(self, index: int, response: InferenceResponse | None, *, final: bool) -> None:
        """Give request `index` a response; None with `final` is a bare end."""
        request = self._batch.requests[index]
        if not self.decoupled and self._batch.responses[index] is not None:
            raise TritonModelException("the request has been answered already")
        if response is None:
            answer = self._instance.to_server(request, InferenceResponse())
            answer.empty = True
        else:
            answer = self._instance.to_server(request, response)
        answer.final = final
        self._batch.respond(index, answer)

    def abandon(self, index: int) -> None:
        """End the answers of request `index` with an error: its sender is gone."""
        self.fail(index, "the model dropped the response sender before the final flag was sent")

    def fail(self, index: int, message: str) -> None:
        """Give request `index` an error as its final response."""
        self._batch.respond(index, self._instance.failure(self._batch.requests[index], message))

    def fail_open(self, requests: list[InferenceRequest], message: str) -> None:
        """Give every request that has no final response yet an error as its final one."""
        for index, request in enumerate(requests):
            sender = request._sender
            was_open = sender is None or sender._close()
            if self.decoupled:
                if was_open:
                    self.fail(index, message)
            elif self._batch.responses[index] is None:
                self.fail(index, message)


def _fault(message: str) -> RequestError:
    return RequestError(ErrorCode.INTERNAL, message, reason=FailureReason.BACKEND)
