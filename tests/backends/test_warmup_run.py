"""What the execution of warm-up samples shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.builders import config_of, loaded, source_in, write_model
from tests.backends.test_warmup import MODEL, ZEROS, sampled, samples_of
from tritrio.backends import warmup
from tritrio.backends.base import Backend, Batch, ModelSource
from tritrio.backends.identity import IdentityBackend
from tritrio.backends.python_model import PythonBackend
from tritrio.backends.warmup import run_warmup, warmup_samples
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.errors import ErrorCode, RequestError, invalid_argument
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.pb.inference import ModelConfig, ModelTransactionPolicy
from tritrio.protocol.requests import InferResponse


class Model:
    """Remembers what it executed; answers with `answer`."""

    def __init__(self, answer: Callable[[Batch], None] | None = None) -> None:
        self.batches: list[Batch] = []
        self._answer = answer or answered

    def load(self) -> None: ...

    def execute(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._answer(batch)

    def unload(self) -> None: ...


def answered(batch: Batch) -> None:
    for index in range(len(batch.requests)):
        batch.respond(index, InferResponse("m", "1"))


def run_fault(model: Model, *, decoupled: bool = False) -> tuple[ErrorCode, str]:
    with pytest.raises(RequestError) as caught:
        run_warmup(model, samples_of(MODEL + sampled(ZEROS, batch_size=2)), decoupled=decoupled)
    assert caught.value.message.startswith("model 'm': model_warmup 'w': ")
    return caught.value.code, caught.value.message.removeprefix("model 'm': model_warmup 'w': ")


def test_a_sample_is_executed_count_times_as_separate_requests_of_one_row() -> None:
    model = Model()
    texts = sampled(ZEROS, batch_size=3, count=2), sampled(ZEROS, count=0)
    run_warmup(model, samples_of(MODEL + "".join(texts)), decoupled=False)
    assert [len(batch.requests) for batch in model.batches] == [3, 3, 1]
    requests = [request for batch in model.batches for request in batch.requests]
    assert len({id(request) for request in requests}) == 7
    assert {(r.batch_size, r.inputs["A"].shape) for r in requests} == {(1, (1, 3))}
    assert all(request.spec is not None for request in requests)


def test_the_requests_of_a_sequence_model_are_executed_as_whole_sequences() -> None:
    (sample,) = samples_of(MODEL + "sequence_batching {}" + sampled(ZEROS, batch_size=2))
    model = Model()
    run_warmup(model, [sample], decoupled=False)
    (batch,) = model.batches
    flags = [(r.sequence_id, r.sequence_start, r.sequence_end) for r in batch.requests]
    assert flags == [(1, True, True), (2, True, True)]


def failing_second(batch: Batch) -> None:
    batch.respond(0, InferResponse("m", "1", final=False))
    batch.respond(0, InferResponse("m", "1"))
    error = invalid_argument("no luck")
    batch.respond(1, InferResponse("m", "1", error=error, final=False))


def test_an_error_response_fails_the_load() -> None:
    def fail(batch: Batch) -> None:
        batch.respond(0, InferResponse("m", "1"))
        batch.respond(1, InferResponse("m", "1", error=invalid_argument("no luck")))

    assert run_fault(Model(fail)) == (ErrorCode.INVALID_ARG, "no luck")
    assert run_fault(Model(failing_second), decoupled=True) == (ErrorCode.INVALID_ARG, "no luck")


@pytest.mark.parametrize("error", [MemoryError("too much"), SystemExit("too much")])
def test_an_exception_fails_the_load(error: BaseException) -> None:
    def fail(batch: Batch) -> None:
        raise error

    fault = f"the execution raised {type(error).__name__}: too much"
    assert run_fault(Model(fail)) == (ErrorCode.INTERNAL, fault)
    assert run_fault(Model(fail), decoupled=True) == (ErrorCode.INTERNAL, fault)


def test_a_missing_response_fails_the_load_unless_it_is_to_come_later() -> None:
    def answer_first(batch: Batch) -> None:
        batch.respond(0, InferResponse("m", "1"))

    def reschedule_second(batch: Batch) -> None:
        answer_first(batch)
        batch.rescheduled.add(1)

    fault = (ErrorCode.INTERNAL, "the model gave no response")
    assert run_fault(Model(answer_first)) == fault
    run_warmup(
        Model(reschedule_second),
        samples_of(MODEL + sampled(ZEROS, batch_size=2)),
        decoupled=False,
    )


def test_a_decoupled_model_that_does_not_end_in_time_fails_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer_some(batch: Batch) -> None:
        batch.respond(0, InferResponse("m", "1"))
        batch.respond(1, InferResponse("m", "1", final=False))

    monkeypatch.setattr(warmup, "FINAL_RESPONSES_MAX_S", 0.0)
    assert run_fault(Model(answer_some), decoupled=True) == (
        ErrorCode.INTERNAL,
        "expected the final response to each request within 0 s, 1 are missing",
    )


def warmed(backend: Backend, source: ModelSource, config: ModelConfig) -> None:
    """Load a model and warm it up, as a server does."""
    config.model_warmup = parse_model_config(
        sampled(
            'key: "INPUT0" value { data_type: TYPE_FP32 dims: 2 zero_data: true }', batch_size=2
        ),
        file="c",
    ).model_warmup
    instance = loaded(backend, source, config)
    spec = ModelSpec.from_config(config, source.version)
    samples = warmup_samples(config, spec, source.model_directory, {})
    try:
        run_warmup(instance, samples, decoupled=spec.decoupled)
    finally:
        instance.unload()


ONE_INPUT = [("INPUT0", "FP32", [-1])]
ONE_OUTPUT = [("OUTPUT0", "FP32", [-1])]


def test_an_identity_model_can_be_warmed_up(tmp_path: Path) -> None:
    warmed(
        IdentityBackend(), source_in(tmp_path), config_of(ONE_INPUT, ONE_OUTPUT, max_batch_size=2)
    )


def test_a_python_model_that_ends_its_responses_on_a_thread_of_its_own_is_waited_for(
    tmp_path: Path,
) -> None:
    source = write_model(
        tmp_path,
        """
        import threading
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    threading.Thread(target=self.answer, args=(sender,)).start()
            def answer(self, sender):
                error = pb_utils.TritonError("late " + threading.current_thread().name[:6])
                sender.send(pb_utils.InferenceResponse(error=error), flags=1)
        """,
    )
    config = config_of(ONE_INPUT, ONE_OUTPUT, max_batch_size=2)
    config.model_transaction_policy = ModelTransactionPolicy(decoupled=True)
    with pytest.raises(RequestError, match="model_warmup 'w': late Thread"):
        warmed(PythonBackend(), source, config)
