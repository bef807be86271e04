"""Does the steps of a model that generates text, on the thread of its instance."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import final

from ...memory.kv_slots import KV_BLOCK_TOKENS, blocks_of
from ...protocol.errors import ErrorCode, RequestError, invalid_argument
from ...protocol.pb.inference import ModelConfig
from ...protocol.sampling_params import SamplingParams
from ...protocol.tensors import Array
from ...protocol.wording import about_model, installing
from ..base import Batch, InstancePlace, ModelSource
from ..fault_log import FaultLog
from .causal_model import CausalModel
from .configuration import check_config
from .generation_config import read_sampling_defaults
from .load_log import log_loaded
from .sampler import Sampler
from .settings import LlmSettings, read_settings
from .steps import EngineLimits, SequenceFault, StepPlan, StepResult, TokenChoice
from .text import Text

_MISSING = "{} is missing; {} gets what models that generate text need"


@final
class LlmInstance:
    """One loaded model with the state of its sequences; see `GeneratesTokens`."""

    generates_tokens = True
    limits: EngineLimits
    text: Text
    sampling_defaults: SamplingParams

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        self._source = source
        self._config = config
        self._place = place
        self._model: CausalModel | None = None
        self._faults = FaultLog()

    def load(self) -> None:
        """Read the settings, the tokenizer and the model, and take memory for the state.

        Raises:
          RequestError: something is missing, wrong, or does not fit together.
        """
        try:
            self._load()
        except ModuleNotFoundError as error:
            message = _MISSING.format(f"the Python package '{error.name}'", installing("llm"))
            raise RequestError(ErrorCode.UNSUPPORTED, self._named(message)) from error
        except RequestError as error:
            raise RequestError(error.code, self._named(error.message)) from None

    def _load(self) -> None:
        from .tokenizers import load_text  # noqa: PLC0415 - needs packages that others do not

        check_config(self._config)
        settings = read_settings(self._source, self._config.default_model_filename)
        self.text = load_text(
            self._source.version_directory,
            tokenizer=settings.tokenizer,
            chat_template=settings.chat_template,
            end_tokens=settings.eos_token_id,
        )
        self.sampling_defaults = read_sampling_defaults(self._source.version_directory)
        self._model = model = self._open(settings)
        self.limits = limits_of(settings, model, self.text)
        self._sampler = Sampler(self.limits.vocabulary_size, self.limits.end_tokens)
        threads = None if settings.is_python else settings.onnx_threads(self._place)
        log_loaded(self._place.name, self.limits, self.text, threads)

    def _open(self, settings: LlmSettings) -> CausalModel:
        if settings.is_python:
            from .python_causal import PythonCausalModel  # noqa: PLC0415 - as much as is needed

            return PythonCausalModel(self._source, self._config, settings, self._place)
        from .onnx_causal import OnnxCausalModel  # noqa: PLC0415

        return OnnxCausalModel(self._source, settings, self._place)

    def execute(self, batch: Batch) -> None:
        """Refuse: what generates text does steps.

        Raises:
          RequestError: UNSUPPORTED, always.
        """
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            self._named(
                f"a model that generates text takes requests into its steps one by one, got a "
                f"batch of {len(batch.requests)}"
            ),
        )

    def unload(self) -> None:
        """Let go of the model and all state."""
        model, self._model = self._model, None
        if model is not None:
            model.close()

    def step(self, plan: StepPlan) -> StepResult:
        """Do one step; see `GeneratesTokens`.

        Raises:
          RequestError: the model failed as sequences went on together; all of the step fail.
        """
        model = self._model
        assert model is not None, "step() before load()"
        for start in plan.joins:
            self._sampler.join(start)
        for sequence_id in plan.leaves:
            self._sampler.leave(sequence_id)
        sampled = _Choices(self._sampler)
        try:
            begin_ns = perf_counter_ns()
            for swap in plan.swaps:
                model.swap(swap)
            for copy in plan.copies:
                model.copy(copy)
            copied_ns = perf_counter_ns()
            if plan.decodes:
                logits = model.decode(plan.decodes, plan.idle_rows)
                sampled.add(logits, [decode.sequence_id for decode in plan.decodes])
        except RequestError as error:
            self._faults.note(self._named(error.message))
            raise RequestError(
                error.code, self._named(error.message), reason=error.reason
            ) from None
        decode_ns = perf_counter_ns() - copied_ns - sampled.ns if plan.decodes else 0
        for prefill in plan.prefills:
            try:
                logits = model.prefill(prefill)
            except RequestError as error:
                sampled.faults[prefill.sequence_id] = SequenceFault(self._named(error.message))
                continue
            if prefill.samples:
                sampled.add(logits, [prefill.sequence_id])
        for fault in sampled.faults.values():
            if not fault.of_request:
                self._faults.note(self._named(fault.reason))
        rest_ns = perf_counter_ns() - begin_ns - decode_ns - sampled.ns
        return StepResult(
            choices=sampled.choices,
            faults=sampled.faults,
            prefill_ns=rest_ns if plan.prefills else 0,
            decode_ns=decode_ns,
            sample_ns=sampled.ns,
        )

    def _named(self, message: str) -> str:
        return about_model(self._source.name, message)


class _Choices:
    """What was chosen in one step, and how long that took."""

    def __init__(self, sampler: Sampler) -> None:
        self.choices: dict[int, TokenChoice] = {}
        self.faults: dict[int, SequenceFault] = {}
        self.ns = 0
        self._sampler = sampler

    def add(self, logits: Array, ids: Sequence[int]) -> None:
        """Choose behind each row; before the model overwrites the logits."""
        begin_ns = perf_counter_ns()
        choices, faults = self._sampler.sample(logits, ids)
        self.faults.update(faults)
        for sequence_id, choice in zip(ids, choices, strict=True):
            if choice is not None:
                self.choices[sequence_id] = choice
        self.ns += perf_counter_ns() - begin_ns


def limits_of(settings: LlmSettings, model: CausalModel, text: Text) -> EngineLimits:
    """Return what a loaded model can do.

    Raises:
      RequestError: INVALID_ARG; an end token is unknown.
    """
    vocabulary_size = min(model.vocabulary_size, text.vocabulary_size)
    unknown = [token for token in text.end_tokens if token >= vocabulary_size]
    if unknown:
        raise invalid_argument(
            f"expected end tokens below {vocabulary_size}, which model and tokenizer have in "
            f"common, got {unknown[0]}"
        )
    block_bytes = KV_BLOCK_TOKENS * model.kv_bytes_per_token
    budget_bytes = settings.kv_cache_memory_bytes
    if budget_bytes is None:
        budget_bytes = settings.max_num_seqs * blocks_of(model.tokens_per_row) * block_bytes
    return EngineLimits(
        rows=settings.max_num_seqs,
        tokens_per_row=model.tokens_per_row,
        step_tokens=settings.step_tokens,
        kv_bytes_per_token=model.kv_bytes_per_token,
        kv_budget_bytes=budget_bytes,
        end_tokens=text.end_tokens,
        prefix_caching=settings.enable_prefix_caching and model.can_copy,
        contiguous=model.contiguous,
        vocabulary_size=vocabulary_size,
        prefill_tokens_min=model.prefill_tokens_min,
    )
