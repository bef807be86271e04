"""The backends "sequence", "dyna_sequence" and "iterative_sequence": test models of sequences.

- `sequence`: adds up its INPUT, INT32 [n], over a sequence; every element of OUTPUT is the sum so
  far. With the strategy direct, sums belong to rows, as a model with state on a device has it;
  with oldest, to correlation ids.
- `dyna_sequence`: the same by correlation id, which is added to the last answer.
- `iterative_sequence`: decoupled; INPUT INT32 [1] with the value n is answered n-1, n-2, … 0, one
  execution each.

Sums are INT32 and wrap. `parameters` of the first two: `execute_delay_ms`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Final, final

import numpy as np

from ..protocol.dtypes import BYTES
from ..protocol.errors import ErrorCode, invalid_argument
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest
from ..protocol.wording import quoted
from .base import Batch, InstancePlace, ModelSource, SequenceEnd
from .testing_models import (
    Answers,
    FilelessBackend,
    Pauses,
    check_controls,
    check_decoupled,
    check_single,
    check_tensors,
    execute_delay_s,
)

_INPUT: Final = {"INPUT": "INT32"}
_OUTPUT: Final = {"OUTPUT": "INT32"}


@final
class AccumulatingInstance:
    """One sequence or dyna_sequence model.

    Args:
      adds_id: Whether it is a dyna_sequence model.

    Attributes:
      hears_sequence_ends: Whether it keeps sums by correlation id.
    """

    def __init__(
        self,
        source: ModelSource,
        config: ModelConfig,
        place: InstancePlace,
        *,
        adds_id: bool,
    ) -> None:
        del place  # runs anywhere
        self._source = source
        self._config = config
        self._adds_id = adds_id
        sequence = config.sequence_batching
        by_id = adds_id or (sequence is not None and sequence.oldest is not None)
        self.hears_sequence_ends = by_id
        self._sums: dict[Hashable, int] = {}
        self._pauses = Pauses()
        self._delay_s = 0.0
        self._answers: Answers | None = None

    def load(self) -> None:
        """Check the configuration.

        Raises:
          RequestError: it has other tensors or controls, or a parameter is not allowed.
        """
        config = self._config
        kind = "dyna_sequence" if self._adds_id else "sequence"
        check_tensors(config, kind, _INPUT, _OUTPUT)
        controls = ["START", "END", "READY", "CORRID"] if self._adds_id else ["START", "READY"]
        check_controls(config, kind, controls)
        if self._adds_id:
            _check_id(config, self._source.version)
        self._delay_s = execute_delay_s(config)
        self._answers = Answers(self._source, config)

    def execute(self, batch: Batch) -> None:
        """Add to the sums of the rows that are READY; the others get no answer."""
        assert self._answers is not None, "execute() before load()"
        batch.compute_start_ns = batch.infer_start_ns = perf_counter_ns()
        self._pauses.wait(self._delay_s, batch.requests)
        batch.infer_end_ns = perf_counter_ns()
        for row, request in enumerate(batch.requests):
            if _is_set(request, "READY"):
                self._add(self._answers, batch, row)
        batch.compute_end_ns = perf_counter_ns()

    def unload(self) -> None:
        """End the delays of requests that nobody waits for any more."""
        self._pauses.end()

    def sequences_ended(self, ends: Sequence[SequenceEnd]) -> None:
        """Forget the sums of sequences that are over."""
        for end in ends:
            self._sums.pop(end.sequence_id, None)

    def _add(self, answers: Answers, batch: Batch, row: int) -> None:
        request = batch.requests[row]
        values = request.inputs["INPUT"].array
        key: Hashable = request.sequence_id if self.hears_sequence_ends else row
        before = 0 if _is_set(request, "START") else self._sums.get(key, 0)
        answer = self._sums[key] = _wrapped(before + int(values.sum(dtype=np.int64)))
        if self._adds_id and _is_set(request, "END"):
            try:
                answer = _wrapped(answer + _wrapped(int(request.inputs["CORRID"].array.item())))
            except ValueError:
                message = f"expected a correlation id that is a number, got {quoted(str(key))}"
                batch.respond(row, answers.failure(request, ErrorCode.INVALID_ARG, message))
                return
        array = np.full(values.shape, answer, np.int32)
        batch.respond(row, answers.answer(request, {"OUTPUT": array}))


@final
class IterativeInstance:
    """One iterative_sequence model.

    Without `iterative_sequence` in its configuration it loads, but fails each request that wants
    another execution, so that clients can see that.

    Attributes:
      hears_sequence_ends: It remembers what is left of each sequence.
    """

    hears_sequence_ends = True

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        del place  # runs anywhere
        self._source = source
        self._config = config
        sequence = config.sequence_batching
        self._iterative = sequence is not None and sequence.iterative_sequence
        self._left: dict[int | str, int] = {}
        self._answers: Answers | None = None

    def load(self) -> None:
        """Check the configuration.

        Raises:
          RequestError: it has other tensors, or is not decoupled.
        """
        check_tensors(self._config, "iterative_sequence", _INPUT, _OUTPUT)
        check_single(self._config, "iterative_sequence", "INPUT")
        check_decoupled(self._config, "iterative_sequence")
        self._answers = Answers(self._source, self._config)

    def execute(self, batch: Batch) -> None:
        """Answer each request once; those with more to come want another execution."""
        answers = self._answers
        assert answers is not None, "execute() before load()"
        batch.compute_start_ns = batch.infer_start_ns = perf_counter_ns()
        for index, request in enumerate(batch.requests):
            values = request.inputs["INPUT"].array
            if values.size != 1:
                message = f"expected one element, got {values.size}"
                batch.respond(index, answers.failure(request, ErrorCode.INVALID_ARG, message))
                continue
            left = self._left.pop(request.sequence_id, int(values.item())) - 1
            again = left > 0
            if again and not self._iterative:
                message = (
                    "the release flag TRITONSERVER_REQUEST_RELEASE_RESCHEDULE is for models with "
                    "iterative_sequence only, and it has none"
                )
                batch.respond(index, answers.failure(request, ErrorCode.INVALID_ARG, message))
                continue
            array = np.full(values.shape, _wrapped(left), np.int32)
            batch.respond(index, answers.answer(request, {"OUTPUT": array}, final=not again))
            if again:
                self._left[request.sequence_id] = left
                batch.rescheduled.add(index)
        batch.infer_end_ns = batch.compute_end_ns = perf_counter_ns()

    def unload(self) -> None:
        """Nothing was taken."""

    def sequences_ended(self, ends: Sequence[SequenceEnd]) -> None:
        """Forget sequences that are over."""
        for end in ends:
            self._left.pop(end.sequence_id, None)


def _check_id(config: ModelConfig, version: int) -> None:
    correlation = ModelSpec.from_config(config, version).correlation_id
    if correlation is None or correlation[0] != "CORRID" or correlation[1] not in {"UINT64", BYTES}:
        got = "none" if correlation is None else f"'{correlation[0]}' {correlation[1]}"
        raise invalid_argument(
            f"model '{config.name}': the backend 'dyna_sequence' wants the correlation id as "
            f"'CORRID' of TYPE_UINT64 or TYPE_STRING, got {got}"
        )


def _is_set(request: InferRequest, control: str) -> bool:
    return bool(request.inputs[control].array.item())


def _wrapped(number: int) -> int:
    """Return the INT32 with the same low bits."""
    return (number + 2**31) % 2**32 - 2**31


SequenceBackend = partial(FilelessBackend, "sequence", partial(AccumulatingInstance, adds_id=False))
DynaSequenceBackend = partial(
    FilelessBackend, "dyna_sequence", partial(AccumulatingInstance, adds_id=True)
)
IterativeSequenceBackend = partial(FilelessBackend, "iterative_sequence", IterativeInstance)
