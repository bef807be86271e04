"""Where one request of an ensemble stands.  Pure: no trio, no clock.

See `_ensemble_graph` for what an iteration is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, final

from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.requests import Parameters
from ..protocol.tensors import Tensor
from ..protocol.wording import quoted
from ._ensemble_graph import ROOT, EnsembleGraph, Plan, Step
from ._ensemble_holdings import Holdings

ITERATIONS_MAX: Final = 16
"""Iterations of one decoupled step and one request that run, or whose answers wait to be received:
enough to keep the steps behind it busy, and few enough that a fast producer in front of a slow
step or a slow client costs no more memory than that."""

_NOTHING: Final[Parameters] = {}


class Value(NamedTuple):
    """What became of a tensor.

    Attributes:
      tensor: The tensor, or None if it is absent.
      why: Why it is absent.
      sequence: Parameters of the responses it comes from that override the request's sequence.
    """

    tensor: Tensor | None
    why: str = ""
    sequence: Parameters = _NOTHING


class Iteration:
    """The tensors that one response of a decoupled step leads to, or those of the root."""

    __slots__ = ("left", "missing", "origin", "unfinished", "values")

    def __init__(self, origin: int, missing: dict[int, int]) -> None:
        self.origin = origin
        self.missing = missing  # reader -> tensors it waits for
        self.unfinished = len(missing)
        self.values: dict[str, Value] = {}
        self.left: dict[str, int] = {}  # tensor -> readers that have not read it


class StepCall:
    """One request that a step is to get.

    Attributes:
      step: The step.
      iteration: Where it runs.
      inputs: Input of the model -> tensor; named as the ensemble names it.
      outputs: (output of the model, tensor) pairs to ask for.
      sequence: Parameters that override the request's sequence.
      held: What it reads, each once, until its last response.
    """

    __slots__ = ("held", "inputs", "iteration", "outputs", "sequence", "step")

    def __init__(
        self,
        step: Step,
        iteration: Iteration,
        inputs: dict[str, Tensor],
        outputs: tuple[tuple[str, str], ...],
        sequence: Parameters,
        *,
        held: tuple[Tensor, ...],
    ) -> None:
        self.step = step
        self.iteration = iteration
        self.inputs = inputs
        self.outputs = outputs
        self.sequence = sequence
        self.held = held


class Answer(NamedTuple):
    """One response of the ensemble.

    Attributes:
      tensors: Output -> tensor, in the order of the configuration.
      sequence: As of `Value`.
    """

    tensors: dict[str, Tensor]
    sequence: Parameters


@final
class EnsembleRun:
    """The tensors of one request on their way.

    Args:
      graph: The ensemble.
      plan: From `graph.plan`.
      request_id: For errors.
      holdings: Told which tensors are held. Those of an answer are let go by whoever takes it.

    Attributes:
      answers: Responses that are ready and were not taken, in order.
    """

    __slots__ = (
        "_answered",
        "_graph",
        "_holdings",
        "_in_flight",
        "_live",
        "_plan",
        "_ready",
        "_request_id",
        "_root",
        "answers",
    )

    def __init__(
        self, graph: EnsembleGraph, plan: Plan, request_id: str, holdings: Holdings
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._request_id = request_id
        self._holdings = holdings
        self._root = self._new_iteration(ROOT)
        self._live: dict[int, dict[Iteration, None]] = {origin: {} for origin in plan.members}
        self._ready: deque[tuple[Iteration, int]] = deque()
        self._in_flight = 0
        self._answered = 0
        self.answers: deque[Answer] = deque()

    @property
    def done(self) -> bool:
        """Whether nothing is in flight, so that there will be no further answer."""
        return self._in_flight == 0

    def live(self, step: Step) -> int:
        """Return how many iterations of a decoupled step have not ended."""
        return len(self._live[step.index])

    def start(self, inputs: Mapping[str, Tensor]) -> list[StepCall]:
        """Take the request's inputs; return what runs first.

        Raises:
          RequestError: INVALID_ARG; what was asked for cannot be made from these inputs.
        """
        for name in self._graph.inputs:
            self._set(
                self._root,
                name,
                Value(inputs.get(name), f"the request has no input '{name}'"),
            )
        return self._calls()

    def respond(
        self, call: StepCall, outputs: Iterable[Tensor], parameters: Parameters, *, final: bool
    ) -> list[StepCall]:
        """Take one response of a step; return what runs next.

        Raises:
          RequestError: INVALID_ARG; an output that is needed can no longer be produced.
            UNSUPPORTED; the ensemble gives one response, but a decoupled step gave several.
            UNAVAILABLE; there is no room for what it gave.
        """
        iteration = call.iteration
        if call.step.decoupled:
            iteration = self._new_iteration(call.step.index)
            self._live[call.step.index][iteration] = None
        sequence = call.sequence
        if override := sequence_override(parameters):
            sequence = {**sequence, **override}
        given = {tensor.name: tensor for tensor in outputs}
        if final:
            self._let_go(call)
        for output, tensor in call.outputs:
            if output in given:
                self._holdings.take(given[output])
            why = f"{call.step} did not give its output '{output}'"
            self._set(iteration, tensor, Value(given.get(output), why, sequence))
        calls = self._calls()
        return calls + self.end(call) if final else calls

    def end(self, call: StepCall) -> list[StepCall]:
        """Note that a step has given its last response; return what runs next.

        Raises:
          RequestError: as `respond`.
        """
        self._in_flight -= 1
        self._let_go(call)
        self._finish(call.iteration)
        if self.done and not self._answered and not self._graph.decoupled:
            raise self._impossible(self._plan.outputs, f"{call.step} gave no response")
        return []

    def _let_go(self, call: StepCall) -> None:
        """Note that a step needs its inputs no longer; idempotent."""
        held, call.held = call.held, ()
        self._holdings.let_go(held)

    def _new_iteration(self, origin: int) -> Iteration:
        plan = self._plan
        known = self._root.values.keys() if origin != ROOT else ()
        missing = {
            reader: sum(tensor not in known for tensor in plan.needs[reader])
            for reader in plan.members[origin]
        }
        return Iteration(origin, missing)

    def _set(self, iteration: Iteration, tensor: str, value: Value) -> None:
        """Note what became of a tensor, and whom that makes ready."""
        readers = self._plan.readers.get(tensor, [])
        if not readers:
            return
        iteration.values[tensor] = value
        iteration.left[tensor] = len(readers)
        for reader in readers:
            origin = self._plan.origin_of(self._graph, reader)
            waiting: Iterable[Iteration] = (
                [iteration] if origin == iteration.origin else self._live[origin]
            )
            for one in waiting:
                one.missing[reader] -= 1
                if one.missing[reader] == 0:
                    self._ready.append((one, reader))

    def _calls(self) -> list[StepCall]:
        """Do all that is ready: answers here, the requests to steps by the caller."""
        calls: list[StepCall] = []
        while self._ready:
            iteration, reader = self._ready.popleft()
            values = self._take(iteration, reader)
            if reader == self._plan.answer:
                self._answer(values)
                self._finish(iteration)
                continue
            call = self._call(self._graph.steps[reader], iteration, values)
            if call is not None:
                self._in_flight += 1
                calls.append(call)
        return calls

    def _take(self, iteration: Iteration, reader: int) -> dict[str, Value]:
        """Return the tensors of a reader, who holds them now; forget those that nobody else reads.

        A tensor of the root that iterations read stays: there may always be another iteration.
        """
        values: dict[str, Value] = {}
        for tensor in self._plan.needs[reader]:
            stays = tensor not in iteration.values
            value = values[tensor] = (self._root if stays else iteration).values[tensor]
            if not stays:
                iteration.left[tensor] -= 1
                if not iteration.left[tensor]:
                    del iteration.values[tensor]
                    continue  # the reader takes the place of the iteration
            if value.tensor is not None:
                self._holdings.share(value.tensor)
        return values

    def _call(
        self, step: Step, iteration: Iteration, values: Mapping[str, Value]
    ) -> StepCall | None:
        """Return the request to a step; None if it cannot run, because an input is absent."""
        inputs: dict[str, Tensor] = {}
        sequence: Parameters = {}
        held = tuple(value.tensor for value in values.values() if value.tensor is not None)
        for name, tensor in step.inputs:
            value = values[tensor]
            if value.tensor is not None:
                inputs[name] = value.tensor
                sequence.update(value.sequence)
            elif name not in step.optional:
                self._holdings.let_go(held)
                self._skip(step, iteration, f"{step} needs its input '{name}', but {value.why}")
                return None
        return StepCall(step, iteration, inputs, self._plan.wanted[step.index], sequence, held=held)

    def _skip(self, step: Step, iteration: Iteration, why: str) -> None:
        if step.decoupled:
            raise self._impossible(self._plan.outputs, why)
        for _, tensor in self._plan.wanted[step.index]:
            self._set(iteration, tensor, Value(None, why))
        self._finish(iteration)

    def _answer(self, values: Mapping[str, Value]) -> None:
        tensors: dict[str, Tensor] = {}
        sequence: Parameters = {}
        absent: list[str] = []
        for name in self._plan.outputs:
            value = values[name]
            if value.tensor is None:
                absent.append(name)
            else:
                tensors[name] = value.tensor
                sequence.update(value.sequence)
        if absent and (self._plan.strict or not tensors):
            raise self._impossible(absent, values[absent[0]].why)
        if self._answered and not self._graph.decoupled:
            step = self._graph.steps[self._plan.origin]
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                f"{self._graph} gives one response a request, but {step} gave several; "
                "model_transaction_policy { decoupled: true } of the ensemble allows that",
            )
        self._answered += 1
        self.answers.append(Answer(tensors, sequence))

    def _finish(self, iteration: Iteration) -> None:
        """Note that a reader of an iteration has done its work."""
        iteration.unfinished -= 1
        if not iteration.unfinished and iteration.origin != ROOT:
            del self._live[iteration.origin][iteration]

    def _impossible(self, outputs: Iterable[str], why: str) -> RequestError:
        names = ", ".join(f"'{name}'" for name in outputs)
        return invalid_argument(
            f"{self._graph}: output {names} of request {quoted(self._request_id)} can no longer be "
            f"produced: {why}"
        )


def sequence_override(parameters: Parameters) -> Parameters:
    """Return the parameters of a response that override the sequence of later steps."""
    found: Parameters = {}
    sequence_id = parameters.get("sequence_id")
    if isinstance(sequence_id, int | str) and not isinstance(sequence_id, bool):
        found["sequence_id"] = sequence_id
    for name in ("sequence_start", "sequence_end"):
        flag = parameters.get(name)
        if isinstance(flag, bool):
            found[name] = flag
    return found
