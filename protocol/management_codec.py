"""JSON bodies of the calls that are not inference: metadata, statistics, the index, errors.

Source: KServe v2 with the statistics and model repository extensions as served by Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

import orjson

from .json_text import dump_json
from .llm_statistics import LlmStatistics
from .model_spec import InputSpec, ModelSpec, OutputSpec
from .statistics import Duration, Histogram, ModelStatistics


class StatisticsEntry(Protocol):
    """One model version and its counters."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def version(self) -> str:
        """Decimal text."""

    @property
    def statistics(self) -> ModelStatistics:
        """The counters."""


class IndexEntry(Protocol):
    """One line of the repository index."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def version(self) -> str | None:
        """Decimal text, or None where no version is known."""

    @property
    def state(self) -> Enum:
        """The state; its value is the text clients see. UNKNOWN is left out."""

    @property
    def reason(self) -> str:
        """Why it is in that state, or ""."""


UNKNOWN_STATE = "UNKNOWN"


def error_body(message: str) -> bytes:
    """Return the body of any error."""
    return _dump({"error": message})


def server_metadata(name: str, version: str, extensions: Sequence[str]) -> bytes:
    """Return the answer to `GET /v2`."""
    return _dump({"name": name, "version": version, "extensions": list(extensions)})


def model_metadata(spec: ModelSpec, versions: Sequence[str]) -> bytes:
    """Return the metadata of a model.

    Args:
      spec: The version asked for, or the latest.
      versions: The version asked for, or all ready ones, ascending.
    """
    return _dump(
        {
            "name": spec.name,
            "versions": list(versions),
            "platform": spec.platform,
            "inputs": [_tensor(tensor) for tensor in spec.inputs.values()],
            "outputs": [_tensor(tensor) for tensor in spec.outputs.values()],
        }
    )


def statistics(entries: Iterable[StatisticsEntry]) -> bytes:
    """Return the statistics of model versions."""
    return _dump({"model_stats": [_statistics(entry) for entry in entries]})


def batching(name: str, version: str, explanation: Mapping[str, Any] | None) -> bytes:
    """Return how a model version batches.

    Args:
      name: The model's name.
      version: Decimal text.
      explanation: What its scheduler says, as JSON values; None if it forms no batches.
    """
    if explanation is None:
        explanation = {
            "scheduler": "none",
            "detail": "the scheduler of this model forms no batches: the models that execute its "
            "requests do",
        }
    return _dump({"name": name, "version": version, **explanation})


def repository_index(entries: Iterable[IndexEntry]) -> bytes:
    """Return the repository index; a model that was never loaded has only a name."""
    return _dump([_index_entry(entry) for entry in entries])


def _tensor(tensor: InputSpec | OutputSpec) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def _statistics(entry: StatisticsEntry) -> dict[str, Any]:
    counted = entry.statistics
    shown = {
        "name": entry.name,
        "version": entry.version,
        "last_inference": counted.last_inference_ms,
        "inference_count": counted.inference_count,
        "execution_count": counted.execution_count,
        "inference_stats": {
            "success": _duration(counted.success),
            "fail": _duration(counted.fail),
            "queue": _duration(counted.queue),
            "compute_input": _duration(counted.compute_input),
            "compute_infer": _duration(counted.compute_infer),
            "compute_output": _duration(counted.compute_output),
            "cache_hit": _duration(counted.cache_hit),
            "cache_miss": _duration(counted.cache_miss),
        },
        "response_stats": {
            str(index): {
                "compute_infer": _duration(response.compute_infer),
                "compute_output": _duration(response.compute_output),
                "success": _duration(response.success),
                "fail": _duration(response.fail),
                "empty_response": _duration(response.empty_response),
                "cancel": _duration(response.cancel),
            }
            for index, response in counted.responses.items()
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _duration(batch.compute_input),
                "compute_infer": _duration(batch.compute_infer),
                "compute_output": _duration(batch.compute_output),
            }
            for rows, batch in counted.batches.items()
        ],
        "memory_usage": [],
    }
    if counted.llm is not None:
        shown["llm_stats"] = _llm_statistics(counted.llm)
    return shown


def _llm_statistics(counted: LlmStatistics) -> dict[str, Any]:
    engines = counted.totals()
    return {
        "first_token": _total(counted.first_token),
        "inter_token": _total(counted.inter_token),
        "queue": _total(counted.queue),
        "request": _total(counted.request),
        "step": _total(counted.step),
        "release": _total(counted.release),
        "prefill": _duration(counted.prefill),
        "decode": _duration(counted.decode),
        "sample": _duration(counted.sample),
        "prompt_tokens": counted.prompt_tokens,
        "cached_prompt_tokens": counted.cached_tokens,
        "generated_tokens": counted.output_tokens,
        "preemptions": counted.preemptions,
        "finished_sequences": {
            **{reason.value: count for reason, count in counted.finished.items()},
            "error": counted.failed,
        },
        "cancelled_requests": {reason.value: count for reason, count in counted.cancelled.items()},
        "sequences": {
            "running": engines.running,
            "waiting": engines.waiting,
            "paused": engines.paused,
        },
        "kv_cache_bytes": {
            "used": engines.kv_used_bytes,
            "cached": engines.kv_cached_bytes,
            "budget": engines.kv_budget_bytes,
        },
    }


def _total(histogram: Histogram) -> dict[str, int]:
    """Return a histogram of seconds as the extension shows durations."""
    return {"count": sum(histogram.counts), "ns": round(histogram.sum * 1e9)}


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def _index_entry(entry: IndexEntry) -> dict[str, str]:
    line = {"name": entry.name}
    if entry.version is not None:
        line["version"] = entry.version
    if entry.state.value != UNKNOWN_STATE:
        line["state"] = entry.state.value
    if entry.reason:
        line["reason"] = entry.reason
    return line


def _dump(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # a lone surrogate, which the standard library escapes
        return dump_json(value)
