"""What every frontend does with a decoded inference request: check it, queue it, wait, clean up."""

from __future__ import annotations

from time import perf_counter_ns

import trio

from ..protocol import request_rules
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.requests import InferRequest
from .messages import Infer
from .reply import Reply
from .routing_table import ModelVersion


def submit(version: ModelVersion, request: InferRequest, arrived_s: float) -> Reply:
    """Hand a request to its model's scheduler.

    The caller waits on the reply and closes it, whatever happens.

    Raises:
      RequestError: the request does not fit the model, its queue takes no more, or it is part of
        a call that would wait for itself; counted.
    """
    reply = Reply(request)
    try:
        request_rules.validate(request, version.spec)
        if request.call is not None:
            request.call.join(reply, version)
    except RequestError as error:
        count_refusal(version, error, arrived_s)
        if request.trace is not None:
            request.trace.refuse(request, version.spec, error.message, perf_counter_ns())
        raise
    if request.trace is None:
        version.submit(Infer(request, reply, arrived_s))
    else:
        _submit_traced(version, Infer(request, reply, arrived_s))
    return reply


def _submit_traced(version: ModelVersion, infer: Infer) -> None:
    request = infer.request
    request.trace.begin(request, version.spec, perf_counter_ns())
    try:
        version.submit(infer)
    except RequestError as error:
        request.trace.refuse(request, version.spec, error.message, perf_counter_ns())
        raise


def count_refusal(version: ModelVersion, error: RequestError, arrived_s: float) -> None:
    """Count a request that was refused before it reached its scheduler."""
    waited_s = trio.current_time() - arrived_s
    version.statistics.record_failure(error.reason, round(waited_s * 1e9))


def refuse_decoupled(version: ModelVersion, interface: str) -> None:
    """Refuse an interface that has room for exactly one response.

    Raises:
      RequestError: the model is decoupled.
    """
    if version.spec.decoupled:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            f"{interface} gives one response a request, but model '{version.spec.name}' is "
            "decoupled; use the streaming interface",
        )
