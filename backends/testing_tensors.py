"""The backends "implicit_state" and "distributed_addsub": test models of one answer a request.

- `implicit_state`: OUTPUT is INPUT + INPUT_STATE, INT32 [1]. TEST_CASE says what becomes of the
  state: 0 asks for one that does not exist, which fails; 1 leaves it as it is; 2 makes OUTPUT the
  next state, in the one buffer of `use_same_buffer_for_input_output`; 3 wants memory that grows,
  which only a GPU has.
- `distributed_addsub`: OUTPUT0 and OUTPUT1 are the sum and the difference of INPUT0 and INPUT1,
  INT32 [n], and wrap. Its passive instances are loaded, and left alone.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import Final, final

from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.model_spec import states_of
from ..protocol.pb.inference import ModelConfig, ModelSequenceBatchingState
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Array, Tensor
from ..protocol.wording import shape_text
from .base import Batch, InstancePlace, ModelSource
from .testing_models import Answers, FilelessBackend, check_controls, check_single, check_tensors

UNDEFINED_STATE: Final = "undefined_state"
"""The state that TEST_CASE 0 asks for."""


@final
class ImplicitStateInstance:
    """One implicit_state model."""

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        del place  # the CPU's
        self._source = source
        self._config = config
        sequence = config.sequence_batching
        self._states = [] if sequence is None else sequence.state
        self._answers: Answers | None = None

    def load(self) -> None:
        """Check the configuration.

        Raises:
          RequestError: it has other tensors, controls or states.
        """
        inputs = {"INPUT": "INT32", "TEST_CASE": "INT32"}
        check_tensors(self._config, "implicit_state", inputs, {"OUTPUT": "INT32"})
        check_single(self._config, "implicit_state", *inputs)
        check_controls(self._config, "implicit_state", ["START", "END", "READY"])
        for state in states_of(self._config):
            if (state.datatype, state.dims) != ("INT32", (1,)):
                raise invalid_argument(
                    f"model '{self._config.name}': the backend 'implicit_state' wants states of "
                    f"TYPE_INT32 with dims [1], got '{state.output_name}' {state.datatype} "
                    f"{shape_text(state.dims)}"
                )
        self._answers = Answers(self._source, self._config)

    def execute(self, batch: Batch) -> None:
        """Answer the rows that are READY."""
        answers = self._answers
        assert answers is not None, "execute() before load()"
        batch.compute_start_ns = batch.infer_start_ns = perf_counter_ns()
        for row, request in enumerate(batch.requests):
            if request.inputs["READY"].array.item():
                try:
                    response = self._answer(answers, request)
                except RequestError as error:
                    response = answers.failure(request, error.code, error.message)
                batch.respond(row, response)
        batch.infer_end_ns = batch.compute_end_ns = perf_counter_ns()

    def unload(self) -> None:
        """Nothing was taken."""

    def _answer(self, answers: Answers, request: InferRequest) -> InferResponse:
        case = int(request.inputs["TEST_CASE"].array.item())
        if case == 0:
            self._state(UNDEFINED_STATE)
        if case == 3:
            raise RequestError(
                ErrorCode.UNSUPPORTED, "TEST_CASE 3 needs a GPU, whose memory can grow"
            )
        if case not in {1, 2}:
            raise invalid_argument(f"TEST_CASE must be from 0 to 3, got {case}")
        state = self._state("OUTPUT_STATE")
        if case == 2 and not state.use_same_buffer_for_input_output:
            raise invalid_argument(
                "TEST_CASE 2 needs use_same_buffer_for_input_output of its state, got false"
            )
        values = request.inputs["INPUT"].array
        total = values + request.inputs[state.input_name].array.reshape(values.shape)
        response = answers.answer(request, {"OUTPUT": total})
        response.states = {}
        if case == 2:
            name = state.output_name
            response.states[name] = Tensor(name, "INT32", total.shape, array=total.copy())
        return response

    def _state(self, name: str) -> ModelSequenceBatchingState:
        for state in self._states:
            if state.output_name == name:
                return state
        names = ", ".join(state.output_name for state in self._states)
        raise invalid_argument(
            f"there is no state '{name}': its configuration has {names or 'no states'}"
        )


@final
class AddSubInstance:
    """One distributed_addsub model."""

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        del place  # runs anywhere
        self._source = source
        self._config = config
        self._answers: Answers | None = None

    def load(self) -> None:
        """Check the configuration.

        Raises:
          RequestError: it has other tensors.
        """
        inputs = {"INPUT0": "INT32", "INPUT1": "INT32"}
        outputs = {"OUTPUT0": "INT32", "OUTPUT1": "INT32"}
        check_tensors(self._config, "distributed_addsub", inputs, outputs)
        self._answers = Answers(self._source, self._config)

    def execute(self, batch: Batch) -> None:
        """Answer each request with the sum and the difference of its inputs."""
        answers = self._answers
        assert answers is not None, "execute() before load()"
        batch.compute_start_ns = batch.infer_start_ns = perf_counter_ns()
        for index, request in enumerate(batch.requests):
            left: Array = request.inputs["INPUT0"].array
            right: Array = request.inputs["INPUT1"].array
            if left.shape != right.shape:
                message = (
                    "the shapes of INPUT0 and INPUT1 must match, "
                    f"got {shape_text(left.shape)} and {shape_text(right.shape)}"
                )
                response = answers.failure(request, ErrorCode.INVALID_ARG, message)
            else:
                arrays = {"OUTPUT0": left + right, "OUTPUT1": left - right}
                response = answers.answer(request, arrays)
            batch.respond(index, response)
        batch.infer_end_ns = batch.compute_end_ns = perf_counter_ns()

    def unload(self) -> None:
        """Nothing was taken."""


ImplicitStateBackend = partial(FilelessBackend, "implicit_state", ImplicitStateInstance)
DistributedAddSubBackend = partial(FilelessBackend, "distributed_addsub", AddSubInstance)
