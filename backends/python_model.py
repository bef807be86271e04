"""The "python" backend: runs `TritonPythonModel` classes in this process, on instance threads.

A model that wants a process of its own gets one, which runs this same code: see `process_model`. A
request costs a wrapper and a response, no copy between processes. Each fault of a model is
answered with one sentence that names it. A model may have a method that Triton does not know:
`on_sequence_end(correlation_id, reason)`, called between two `execute` once a sequence that it
served is over; the reason is "end", "idle", "cancelled", "error", "restarted" or "unload".
Source: the documented interface of Triton's Python backend.
"""

# ruff: noqa: SLF001 - the backend is the other half of pb_objects

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop of models that are made for it, on their own threads
import inspect
import logging
from collections.abc import Coroutine, Sequence
from contextvars import copy_context
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, Final, final

from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.pb.inference import ModelConfig
from .base import Batch, InstancePlace, ModelInstance, ModelSource, SequenceEnd
from .fault_log import FaultLog
from .pb_context import ModelContext, enter_model, model_loaded, model_unloaded
from .pb_model_config import ModelConfig as ConfigBuilder
from .pb_objects import InferenceResponse
from .pb_request import InferenceRequest
from .process_completion import complete_in_process
from .process_model import ProcessModelInstance
from .python_answering import Answering
from .python_env import wants_process
from .python_loader import MODEL_CLASS, ModelCode, initialize_arguments
from .python_responses import NO_RESPONSE, ResponseMaker
from .span_scope import span_scope

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
        if wants_process(source, config):
            return complete_in_process(source, config)
        return complete_in_here(source, config)

    def create_instance(
        self, source: ModelSource, config: ModelConfig, place: InstancePlace
    ) -> ModelInstance:
        """Return a new, not yet loaded instance.

        Raises:
          RequestError: what the configuration says of its process contradicts itself.
        """
        if wants_process(source, config):
            return ProcessModelInstance(source, config, place)
        return PythonModelInstance(source, config, place)


def complete_in_here(source: ModelSource, config: ModelConfig) -> ModelConfig:
    """Do in this process what `PythonBackend.complete_config` promises."""
    code = ModelCode(source, config.default_model_filename or DEFAULT_FILENAME)
    enter_model(ModelContext(source))
    try:
        complete = getattr(code.load_class(), "auto_complete_config", None)
        if complete is None:
            return config
        builder = code.run("auto_complete_config", complete, ConfigBuilder(config))
    finally:
        code.close()
        enter_model(None)
    if not isinstance(builder, ConfigBuilder) or not isinstance(builder.config, ModelConfig):
        got = "another one" if isinstance(builder, ConfigBuilder) else type(builder).__name__
        raise _fault(
            f"model '{source.name}': auto_complete_config must return the "
            f"pb_utils.ModelConfig it was given, got {got}"
        )
    completed: ModelConfig = builder.config
    return completed


@final
class PythonModelInstance:
    """One object of a model's class, on its thread.

    Attributes:
      decoupled: Whether a request may have any number of responses.
      hears_sequence_ends: Whether the model has the method `on_sequence_end`; known after `load`.
      executes_async: Whether its `execute` is async and not made for asyncio; known after `load`.
      says_ready: Whether the model has the method `is_ready`; known after `load`.
    """

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        self._source = source
        self._config = config
        self._place = place
        self._maker: ResponseMaker | None = None
        sequence = config.sequence_batching
        self._iterative = sequence is not None and sequence.iterative_sequence
        policy = config.model_transaction_policy
        self.decoupled = policy is not None and policy.decoupled
        self.hears_sequence_ends = False
        self.executes_async = False
        self.says_ready = False
        self._is_async = False
        self._runner: asyncio.Runner | None = None
        self._code = ModelCode(source, config.default_model_filename or DEFAULT_FILENAME)
        self._model: Any = None
        self._context = ModelContext(source, place.server, place.number)
        self._faults = FaultLog()

    def load(self) -> None:
        """Import the code, make the model object and call its `initialize`.

        Raises:
          RequestError: the file or class is missing, has no `execute` or an unusable method, or
            raised.
        """
        self._maker = ResponseMaker(self._source, self._config, self._log_fault)
        enter_model(self._context)
        model_class = self._code.load_class()
        self._check_method(model_class, "execute", may_be_async=True)
        self.hears_sequence_ends = hasattr(model_class, "on_sequence_end")
        if self.hears_sequence_ends:
            self._check_method(model_class, "on_sequence_end")
        model_loaded(self._code.package, self._context)
        model = self._code.run(f"{MODEL_CLASS}()", model_class)
        if hasattr(model, "initialize"):
            arguments = initialize_arguments(self._source, self._config, self._place)
            self._code.run("initialize", model.initialize, arguments)
        self._model = model
        self._is_async = inspect.iscoroutinefunction(model.execute)
        self.executes_async = self._is_async and not self._code.uses("asyncio")
        self.says_ready = hasattr(model, "is_ready")

    def _check_method(self, model_class: Any, name: str, *, may_be_async: bool = False) -> None:
        method = getattr(model_class, name, None)
        is_async = inspect.iscoroutinefunction(method)
        if not callable(method) or (is_async and not may_be_async):
            got = "an async one, which is not supported" if callable(method) else "none"
            raise _fault(
                f"model '{self._source.name}': expected a method '{name}' in "
                f"{MODEL_CLASS}, got {got}"
            )

    def unload(self) -> None:
        """Call the model's `finalize` and let go of its code; a fault of it is logged."""
        model, self._model = self._model, None
        enter_model(self._context)
        if hasattr(model, "finalize"):
            try:
                self._code.run("finalize", model.finalize)
            except RequestError as error:
                _LOGGER.error("%s", error.message)  # noqa: TRY400 - it holds the model's frames
        if self._maker is not None:
            self._maker.unloaded = True
        if self._runner is not None:
            self._runner.close()
        model_unloaded(self._code.package)
        self._code.close()
        enter_model(None)

    def is_ready(self) -> bool:
        """Ask the model's `is_ready`, which may be async; see `SaysReady`."""
        enter_model(self._context)
        answer = self._code.run("is_ready", self._model.is_ready)
        if inspect.iscoroutine(answer):
            answer = self._code.run("is_ready", self._run_asyncio, answer)
        if not isinstance(answer, bool):
            raise _fault(
                f"model '{self._source.name}': is_ready must return a bool, "
                f"got {type(answer).__name__}"
            )
        return answer

    def sequences_ended(self, ends: Sequence[SequenceEnd]) -> None:
        """Tell the model, if it wants to know; a fault of it is logged."""
        if not self.hears_sequence_ends:
            return
        enter_model(self._context)
        for end in ends:
            try:
                self._model.on_sequence_end(end.sequence_id, end.reason.value)
            except BaseException as error:  # noqa: BLE001 - a model may raise anything
                self._log_fault(f"on_sequence_end raised {self._code.describe(error)}")

    def execute(self, batch: Batch) -> None:
        """Let the model execute the batch; every fault of it becomes an error response."""
        enter_model(self._context)
        answering, requests = self._begin(batch)
        responses: Any = None
        fault: str | None = None
        try:
            with span_scope(batch):
                responses = self._model.execute(requests.copy())
                responses = self._run_asyncio(responses) if self._is_async else responses
        except BaseException as error:  # noqa: BLE001 - a model may raise anything, also SystemExit
            fault = f"raised {self._code.describe(error)}"
        self._end(batch, answering, requests, responses, fault)

    async def execute_async(self, batch: Batch) -> None:
        """Do as `execute`, on the event loop; what is no `Exception` passes through."""
        enter_model(replace(self._context, on_event_loop=True))
        answering, requests = self._begin(batch)
        responses: Any = None
        fault: str | None = None
        try:
            with span_scope(batch):
                responses = await self._model.execute(requests.copy())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a model may raise anything
            fault = f"raised {self._code.describe(error)}"
        self._end(batch, answering, requests, responses, fault)

    def _run_asyncio(self, execution: Coroutine[Any, Any, Any]) -> Any:
        """Run an async `execute` on this thread, always in the same loop."""
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(execution, context=copy_context())

    def _begin(self, batch: Batch) -> tuple[Answering, list[InferenceRequest]]:
        batch.compute_start_ns = perf_counter_ns()
        self._context.running.batch = batch
        maker = self._maker
        assert maker is not None, "execute() before load()"
        answering = Answering(maker, batch, decoupled=self.decoupled)
        wrap, names = InferenceRequest._received, maker.output_names
        requests = [wrap(one, index, answering, names) for index, one in enumerate(batch.requests)]
        batch.infer_start_ns = perf_counter_ns()
        return answering, requests

    def _end(
        self,
        batch: Batch,
        answering: Answering,
        requests: list[InferenceRequest],
        responses: Any,
        fault: str | None,
    ) -> None:
        batch.infer_end_ns = perf_counter_ns()
        self._context.running.batch = None
        if fault is None:
            fault = self._fault_of_list(responses, requests)
        if fault is not None:
            self._log_fault(f"execute {fault}")
            answering.fail_open(requests, f"model instance '{self._place.name}': execute {fault}")
        elif self.decoupled:
            self._release(batch, requests, answering)
        else:
            self._respond(batch, requests, responses, answering)
        batch.compute_end_ns = perf_counter_ns()

    def _log_fault(self, what: str) -> None:
        """Tell the operator, ever more rarely; see `FaultLog`."""
        self._faults.note(f"model instance '{self._place.name}': {what}")

    def _fault_of_list(self, responses: Any, requests: list[InferenceRequest]) -> str | None:
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
        if len(responses) != len(requests):
            return (
                f"must return a response for each of {len(requests)} requests, got {len(responses)}"
            )
        for request, response in zip(requests, responses, strict=True):
            if response is not None and not isinstance(response, InferenceResponse):
                return (
                    "must return a list of InferenceResponse objects, "
                    f"got one of type {type(response).__name__}"
                )
            if response is not None and request._reschedules:
                return (
                    "must return None for a request with the release flag "
                    f"TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, got {type(response).__name__}"
                )
        return None

    def _respond(
        self,
        batch: Batch,
        requests: list[InferenceRequest],
        responses: list[InferenceResponse | None] | None,
        answering: Answering,
    ) -> None:
        if responses is None:
            responses = [None] * len(requests)
        for index, response in enumerate(responses):
            request = requests[index]
            if request._sender is not None:
                request._sender._close()
            if batch.responses[index] is None:
                if response is not None:
                    answering.answer(index, response)
                elif request._reschedules:
                    self._reschedule(batch, index, answering)
                else:
                    self._log_fault(NO_RESPONSE)
                    answering.fail(index, f"model instance '{self._place.name}': {NO_RESPONSE}")

    def _release(
        self, batch: Batch, requests: list[InferenceRequest], answering: Answering
    ) -> None:
        """Reschedule what a decoupled model has neither finished nor wants to finish by itself."""
        for index, request in enumerate(requests):
            if request._reschedules:
                sender = request._sender
                if sender is None or sender._close():
                    self._reschedule(batch, index, answering)

    def _reschedule(self, batch: Batch, index: int, answering: Answering) -> None:
        if self._iterative:
            batch.rescheduled.add(index)
            return
        answering.fail(
            index,
            f"model '{self._source.name}': the release flag "
            "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE is for models with iterative_sequence only, "
            "and it has none",
            ErrorCode.INVALID_ARG,
        )


def _fault(message: str) -> RequestError:
    return RequestError(ErrorCode.INTERNAL, message, reason=FailureReason.BACKEND)
