"""Which steps of an ensemble run when, and what it answers?  Pure: no trio, no clock.

An `EnsembleGraph` is made once a load. It gives a `Plan` for the outputs that a request asks for,
and an `EnsembleRun` (see `_ensemble_run`) follows the tensors of one request through the plan.

Each response of a decoupled step starts an *iteration*, in which the steps that depend on it run
anew. All other steps run once a request, in what is called the root iteration. A step gets tensors
of at most one decoupled step, and so does the answer, so an iteration needs nothing but its own
tensors and the root's.
Source: Triton's ensemble scheduler; unlike it, an output that nobody asked for may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

ROOT: Final = -1
"""The origin of what does not depend on a decoupled step."""

PLANS_MAX: Final = 64
"""Remembered plans of an ensemble; clients that ask for other outputs each time could make any
number."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an ensemble.

    Attributes:
      index: Its number, from 0.
      model_name: The model it runs.
      version: Decimal text; empty for the latest.
      inputs: (input of the model, tensor) pairs.
      outputs: (output of the model, tensor) pairs.
      optional: Inputs of the model that may be absent.
      decoupled: Whether it may give any number of responses.
      origin: Index of the decoupled step that its inputs come from, or `ROOT`.
    """

    index: int
    model_name: str
    version: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    optional: frozenset[str] = frozenset()
    decoupled: bool = False
    origin: int = ROOT

    @property
    def output_origin(self) -> int:
        """Index of the decoupled step that its outputs come from, or `ROOT`."""
        return self.index if self.decoupled else self.origin

    def __str__(self) -> str:
        return f"step {self.index} (model '{self.model_name}')"


@final
class Plan:
    """What a request needs that asks for certain outputs.

    Readers of tensors are the steps, by index, and the answer, as the index after the last step.

    Attributes:
      outputs: The outputs of the ensemble, in the order of its configuration.
      strict: Whether all of them were asked for by name.
      answer: The index that stands for the answer.
      origin: Where the answer comes from: a decoupled step, or `ROOT`.
      needs: Reader -> the tensors it reads.
      readers: Tensor -> who reads it.
      members: Origin -> the readers that run in its iterations.
      wanted: Step -> the (output of the model, tensor) pairs that somebody reads.
    """

    def __init__(self, graph: EnsembleGraph, outputs: Sequence[str], *, strict: bool) -> None:
        steps = graph.steps
        self.outputs = tuple(outputs)
        self.strict = strict
        self.answer = len(steps)
        self.origin = self._origin(graph)
        self.needs: dict[int, frozenset[str]] = {self.answer: frozenset(outputs)}
        todo = list(outputs)
        while todo:
            writer = graph.writers.get(todo.pop())
            if writer is not None and writer.index not in self.needs:
                tensors = frozenset(tensor for _, tensor in writer.inputs)
                self.needs[writer.index] = tensors
                todo += tensors
        self.readers: dict[str, list[int]] = {}
        self.members: dict[int, list[int]] = {ROOT: []}
        for reader in sorted(self.needs):
            origin = self.origin_of(graph, reader)
            self.members.setdefault(origin, []).append(reader)
            for tensor in self.needs[reader]:
                self.readers.setdefault(tensor, []).append(reader)
        self.wanted = {
            index: tuple(pair for pair in steps[index].outputs if pair[1] in self.readers)
            for index in self.needs
            if index != self.answer
        }

    def origin_of(self, graph: EnsembleGraph, reader: int) -> int:
        """Return in whose iterations a reader runs."""
        return self.origin if reader == self.answer else graph.steps[reader].origin

    def _origin(self, graph: EnsembleGraph) -> int:
        origins = {graph.origin_of(output) for output in self.outputs} - {ROOT}
        assert len(origins) <= 1, "the ensemble was validated"
        return next(iter(origins), ROOT)


@final
class EnsembleGraph:
    """The data flow of an ensemble.

    Args:
      name: The ensemble's name.
      steps: In the order of the configuration.
      inputs: Names of its inputs.
      outputs: Names of its outputs; each is written by a step, and at most one decoupled step is
        the origin of them all.
      decoupled: Whether it may give any number of responses.
      inflight_max: Requests of one step at a time, over all requests of the ensemble; 0 is no
        limit.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[Step],
        *,
        inputs: Sequence[str],
        outputs: Sequence[str],
        decoupled: bool = False,
        inflight_max: int = 0,
    ) -> None:
        self.name = name
        self.steps = tuple(steps)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.decoupled = decoupled
        self.inflight_max = inflight_max
        self.writers = {tensor: step for step in steps for _, tensor in step.outputs}
        self._plans: dict[frozenset[str], Plan] = {}

    def __str__(self) -> str:
        return f"ensemble '{self.name}'"

    def origin_of(self, tensor: str) -> int:
        """Return which decoupled step a tensor comes from, or `ROOT`."""
        writer = self.writers.get(tensor)
        return ROOT if writer is None else writer.output_origin

    def plan(self, asked: Iterable[str] = ()) -> Plan:
        """Return the plan for the outputs a request asks for; none means all."""
        key = frozenset(asked)
        plan = self._plans.get(key)
        if plan is None:
            outputs = [name for name in self.outputs if name in key] if key else self.outputs
            plan = Plan(self, outputs, strict=bool(key))
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            self._plans[key] = plan
        return plan
