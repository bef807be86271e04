"""gRPC messages of the calls that are not inference: read strictly, made from own objects.

Source: `grpc_service.proto`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .management_codec import UNKNOWN_STATE, IndexEntry, StatisticsEntry
from .model_spec import InputSpec, ModelSpec, OutputSpec
from .pb import inference as pb
from .protobuf_wire import malformed
from .statistics import Duration
from .tensors import Buffer
from .wire_types import check_wire_types


def parse_message(message_type: Any, data: Buffer) -> Any:
    """Return the message a client sent.

    betterproto2 takes truncated messages and fails in many ways on others, so the bytes are
    checked first and its failures are given one name.

    Args:
      message_type: A betterproto2 message class.
      data: The whole message.

    Raises:
      RequestError: INTERNAL; the bytes are no such message. INVALID_ARG; too many fields.
    """
    check_wire_types(message_type, data)
    try:
        return message_type.parse(data)
    except (AttributeError, EOFError, LookupError, TypeError, ValueError) as fault:
        raise malformed(f"a field is not what {message_type.__name__} needs: {fault}") from None


def model_metadata_message(spec: ModelSpec, versions: Sequence[str]) -> pb.ModelMetadataResponse:
    """Return the metadata of a model.

    Args:
      spec: The version asked for, or the latest.
      versions: The version asked for, or all ready ones, ascending.
    """
    return pb.ModelMetadataResponse(
        name=spec.name,
        versions=list(versions),
        platform=spec.platform,
        inputs=[_tensor(tensor) for tensor in spec.inputs.values()],
        outputs=[_tensor(tensor) for tensor in spec.outputs.values()],
    )


def statistics_message(entries: Iterable[StatisticsEntry]) -> pb.ModelStatisticsResponse:
    """Return the statistics of model versions."""
    return pb.ModelStatisticsResponse(model_stats=[_statistics(entry) for entry in entries])


def repository_index_message(entries: Iterable[IndexEntry]) -> pb.RepositoryIndexResponse:
    """Return the repository index; a model that was never loaded has only a name."""
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponseModelIndex(
                name=entry.name,
                version=entry.version or "",
                state="" if entry.state.value == UNKNOWN_STATE else entry.state.value,
                reason=entry.reason,
            )
            for entry in entries
        ]
    )


def _tensor(tensor: InputSpec | OutputSpec) -> pb.ModelMetadataResponseTensorMetadata:
    return pb.ModelMetadataResponseTensorMetadata(
        name=tensor.name, datatype=tensor.datatype, shape=list(tensor.shape)
    )


def _statistics(entry: StatisticsEntry) -> pb.ModelStatistics:
    counted = entry.statistics
    return pb.ModelStatistics(
        name=entry.name,
        version=entry.version,
        last_inference=counted.last_inference_ms,
        inference_count=counted.inference_count,
        execution_count=counted.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(counted.success),
            fail=_duration(counted.fail),
            queue=_duration(counted.queue),
            compute_input=_duration(counted.compute_input),
            compute_infer=_duration(counted.compute_infer),
            compute_output=_duration(counted.compute_output),
            cache_hit=_duration(counted.cache_hit),
            cache_miss=_duration(counted.cache_miss),
        ),
        response_stats={
            str(index): pb.InferResponseStatistics(
                compute_infer=_duration(response.compute_infer),
                compute_output=_duration(response.compute_output),
                success=_duration(response.success),
                fail=_duration(response.fail),
                empty_response=_duration(response.empty_response),
                cancel=_duration(response.cancel),
            )
            for index, response in counted.responses.items()
        },
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=rows,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for rows, batch in counted.batches.items()
        ],
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)
