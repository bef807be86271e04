"""Inference requests and responses, as every scheduler and backend sees them.

They are plain, mutable, slotted objects, since one of each is made for every inference. A codec
fills a request, `request_rules` checks it against the model, and from then on only `cancelled`
changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import RequestError
from .model_spec import ModelSpec
from .tensors import Tensor

if TYPE_CHECKING:
    from .shared_tensors import RegionSlice, SharedTensors

ParameterValue: TypeAlias = bool | int | float | str
Parameters: TypeAlias = dict[str, ParameterValue]


class RequestedOutput:
    """One output a client asked for.

    Attributes:
      name: The output's name.
      binary: Whether the client wants it as binary data; None leaves it to the request's default.
        HTTP only: gRPC answers are always binary.
      classification_count: How many top classes to return instead of the tensor; 0 is off.
      parameters: What else the client attached to the output.
      place: Where in shared memory the tensor is to be put; None for the response itself.
    """

    __slots__ = ("binary", "classification_count", "name", "parameters", "place")

    def __init__(
        self,
        name: str,
        *,
        binary: bool | None = None,
        classification_count: int = 0,
        parameters: Parameters | None = None,
        place: RegionSlice | None = None,
    ) -> None:
        self.name = name
        self.binary = binary
        self.classification_count = classification_count
        self.parameters = parameters
        self.place = place


class InferRequest:
    """One inference request.

    Attributes:
      model_name: As in the URL or the message.
      model_version: Decimal text; empty for the latest ready version.
      id: The client's id for the request, echoed in its response; may be empty.
      parameters: Custom parameters; reserved ones are taken out into the attributes below.
      inputs: Input name -> tensor, in the order the client sent them.
      outputs: The outputs asked for; empty means all.
      priority: 0 means the model's default level.
      timeout_us: The client's queue timeout in microseconds; 0 is none.
      sequence_id: Correlation id; 0 and "" mean that the request is of no sequence.
      sequence_start: First request of its sequence.
      sequence_end: Last request of its sequence.
      binary_default: Whether outputs that do not say otherwise are answered as binary data.
      empty_final_response: Whether a stream wants a last message that only says so, where the
        model's final flag comes without a response.
      batch_size: Rows the request adds to a batch, set by `request_rules`; 1 for a model that
        does not batch.
      spec: What the request was checked against, set by `request_rules`; None before.
      call: The call of a model that the request is part of, also as a step of an ensemble; None for
        requests of clients. Known to whoever keeps calls from waiting for themselves.
      shared_memory: Which tensors lie in shared memory, and where; None for most requests. Inputs
        there are empty until a frontend has read them, which is before the request is checked.
      trace: The `Trace` of the request, if it is sampled. Of a request that a model makes, the one
        that it is to be part of.
      cancelled: True once nobody waits for the answer. Written on the event loop, read anywhere.
    """

    __slots__ = (
        "batch_size",
        "binary_default",
        "call",
        "cancelled",
        "empty_final_response",
        "id",
        "inputs",
        "model_name",
        "model_version",
        "outputs",
        "parameters",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "shared_memory",
        "spec",
        "timeout_us",
        "trace",
    )

    def __init__(self, model_name: str, model_version: str = "") -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = ""
        self.parameters: Parameters = {}
        self.inputs: dict[str, Tensor] = {}
        self.outputs: tuple[RequestedOutput, ...] = ()
        self.priority = 0
        self.timeout_us = 0
        self.sequence_id: int | str = 0
        self.sequence_start = False
        self.sequence_end = False
        self.binary_default = False
        self.empty_final_response = False
        self.batch_size = 1
        self.spec: ModelSpec | None = None
        self.call: Any = None
        self.shared_memory: SharedTensors | None = None
        self.trace: Any = None
        self.cancelled = False

    def without_inputs(self, model_name: str, model_version: str) -> InferRequest:
        """Return a new request with this one's header; shares nothing that may be changed.

        `RequestedOutput`s are shared: nobody changes them once they are made.
        """
        copy = InferRequest(model_name, model_version)
        copy.id = self.id
        copy.outputs = self.outputs
        copy.binary_default = self.binary_default
        if self.parameters:
            copy.parameters = self.parameters.copy()
        copy.priority = self.priority
        copy.timeout_us = self.timeout_us
        copy.sequence_id = self.sequence_id
        copy.sequence_start = self.sequence_start
        copy.sequence_end = self.sequence_end
        copy.empty_final_response = self.empty_final_response
        copy.call = self.call
        if self.shared_memory is not None:
            copy.shared_memory = self.shared_memory.copy()
        return copy

    def __repr__(self) -> str:
        return f"<InferRequest {self.id!r} to {self.model_name} {list(self.inputs.values())}>"


class InferResponse:
    """One response to an inference request.

    Attributes:
      model_name: The model that ran.
      model_version: The version that ran, as decimal text.
      id: The request's id.
      parameters: Response parameters the model set.
      outputs: In the order the model gave them; empty with `error`.
      error: What went wrong, or None.
      final: Whether this is the request's last response; exactly one response a request is.
      empty: True for a bare final marker of a decoupled model, which carries no answer.
      compute_ns: Nanoseconds that input, inference and output took in the batch it came from; for
        whoever adds up the steps of an ensemble.
      states: Name -> new value of each state of a sequence model, as the backend left them; taken
        out by the sequence scheduler, and never sent to a client.
    """

    __slots__ = (
        "compute_ns",
        "empty",
        "error",
        "final",
        "id",
        "model_name",
        "model_version",
        "outputs",
        "parameters",
        "states",
    )

    def __init__(
        self,
        model_name: str,
        model_version: str,
        id: str = "",  # noqa: A002 - the field's name on every wire
        outputs: list[Tensor] | None = None,
        *,
        error: RequestError | None = None,
        final: bool = True,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.parameters: Parameters = {}
        self.outputs: list[Tensor] = [] if outputs is None else outputs
        self.error = error
        self.final = final
        self.empty = False
        self.compute_ns = (0, 0, 0)
        self.states: dict[str, Tensor] | None = None

    def __repr__(self) -> str:
        what = repr(self.error) if self.error else self.outputs
        return f"<InferResponse {self.id!r} of {self.model_name} {what}>"
