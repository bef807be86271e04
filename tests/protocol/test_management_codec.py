from __future__ import annotations

import json
from enum import Enum
from types import SimpleNamespace

from tritrio.protocol.errors import FailureReason
from tritrio.protocol.grpc_codec import (
    model_metadata_message,
    repository_index_message,
    statistics_message,
)
from tritrio.protocol.management_codec import (
    error_body,
    model_metadata,
    repository_index,
    server_metadata,
    statistics,
)
from tritrio.protocol.model_spec import InputSpec, ModelSpec, OutputSpec
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.statistics import ModelStatistics

SPEC = ModelSpec(
    "m",
    "2",
    platform="onnxruntime_onnx",
    inputs=[InputSpec("IN", "FP32", (2, -1), batches=True, reshape=(-1, 2), optional=True)],
    outputs=[OutputSpec("OUT", "BYTES", (1,), batches=True)],
    max_batch_size=4,
)


class State(Enum):
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    UNKNOWN = "UNKNOWN"


INDEX = [
    SimpleNamespace(name="a", version="1", state=State.READY, reason=""),
    SimpleNamespace(name="b", version=None, state=State.UNAVAILABLE, reason="Internal: no"),
    SimpleNamespace(name="c", version=None, state=State.UNKNOWN, reason=""),
]


def counted() -> SimpleNamespace:
    counters = ModelStatistics()
    counters.last_inference_ms = 1234
    counters.record_success(
        batch_size=3,
        request_ns=100,
        queue_ns=10,
        compute_input_ns=1,
        compute_infer_ns=2,
        compute_output_ns=3,
    )
    counters.record_failure(FailureReason.OTHER, 7)
    counters.record_execution(
        batch_size=4, compute_input_ns=1, compute_infer_ns=2, compute_output_ns=3
    )
    return SimpleNamespace(name="m", version="2", statistics=counters)


def test_an_error_is_compact_json() -> None:
    assert error_body('no "good"') == b'{"error":"no \\"good\\""}'
    assert json.loads(error_body("\ud800")) == {"error": "\ud800"}


def test_server_metadata() -> None:
    assert server_metadata("tritrio", "1.0", ("a", "b")) == (
        b'{"name":"tritrio","version":"1.0","extensions":["a","b"]}'
    )


def test_model_metadata_has_the_batch_dimension_and_not_the_reshape() -> None:
    assert json.loads(model_metadata(SPEC, ["1", "2"])) == {
        "name": "m",
        "versions": ["1", "2"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [-1, 2, -1]}],
        "outputs": [{"name": "OUT", "datatype": "BYTES", "shape": [-1, 1]}],
    }


def test_the_metadata_message_says_the_same() -> None:
    message = model_metadata_message(SPEC, ["1", "2"])
    parsed = pb.ModelMetadataResponse.parse(bytes(message))
    assert (parsed.name, parsed.versions, parsed.platform) == (
        "m",
        ["1", "2"],
        "onnxruntime_onnx",
    )
    assert [(t.name, t.datatype, t.shape) for t in parsed.inputs + parsed.outputs] == [
        ("IN", "FP32", [-1, 2, -1]),
        ("OUT", "BYTES", [-1, 1]),
    ]


def test_statistics() -> None:
    def duration(count: int, ns: int) -> dict[str, int]:
        return {"count": count, "ns": ns}

    assert json.loads(statistics([counted()])) == {
        "model_stats": [
            {
                "name": "m",
                "version": "2",
                "last_inference": 1234,
                "inference_count": 3,
                "execution_count": 1,
                "inference_stats": {
                    "success": duration(1, 100),
                    "fail": duration(1, 7),
                    "queue": duration(1, 10),
                    "compute_input": duration(1, 1),
                    "compute_infer": duration(1, 2),
                    "compute_output": duration(1, 3),
                    "cache_hit": duration(0, 0),
                    "cache_miss": duration(0, 0),
                },
                "response_stats": {},
                "batch_stats": [
                    {
                        "batch_size": 4,
                        "compute_input": duration(1, 1),
                        "compute_infer": duration(1, 2),
                        "compute_output": duration(1, 3),
                    }
                ],
                "memory_usage": [],
            }
        ]
    }
    assert statistics([]) == b'{"model_stats":[]}'


def test_the_statistics_message_says_the_same() -> None:
    (model,) = pb.ModelStatisticsResponse.parse(bytes(statistics_message([counted()]))).model_stats
    assert (model.name, model.version, model.last_inference) == ("m", "2", 1234)
    assert (model.inference_count, model.execution_count) == (3, 1)
    assert model.inference_stats is not None
    assert model.inference_stats.success == pb.StatisticDuration(count=1, ns=100)
    assert model.inference_stats.fail == pb.StatisticDuration(count=1, ns=7)
    assert model.inference_stats.queue == pb.StatisticDuration(count=1, ns=10)
    assert model.inference_stats.cache_hit == pb.StatisticDuration()
    (batch,) = model.batch_stats
    assert batch.batch_size == 4
    assert batch.compute_infer == pb.StatisticDuration(count=1, ns=2)


def test_the_index_leaves_out_what_is_not_known() -> None:
    assert json.loads(repository_index(INDEX)) == [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "b", "state": "UNAVAILABLE", "reason": "Internal: no"},
        {"name": "c"},
    ]
    assert repository_index([]) == b"[]"


def test_the_index_message_says_the_same() -> None:
    message = pb.RepositoryIndexResponse.parse(bytes(repository_index_message(INDEX)))
    assert [(m.name, m.version, m.state, m.reason) for m in message.models] == [
        ("a", "1", "READY", ""),
        ("b", "", "UNAVAILABLE", "Internal: no"),
        ("c", "", "", ""),
    ]
