"""What the server makes of the responses of a Python model.

Each tensor is checked against the model's configuration, and each fault becomes an error response
with one sentence that names it. `parameters` of the configuration: `UNCHECKED_OUTPUTS` = "yes" lets
outputs of another data type or rank pass as they are, as servers do that never compare them.
"""

# ruff: noqa: SLF001 - the backend is the other half of pb_objects

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import numpy as np

from ..protocol.dtypes import BYTES, NUMPY_DTYPES, datatype_of
from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Tensor as ServerTensor, encode_bytes_elements
from ..protocol.wording import shape_text
from .base import ModelSource
from .fault_text import cut_to, text_of
from .model_outputs import OutputForm, forms_of, names_asked_for, state_forms_of
from .parameters import yes_parameter
from .pb_objects import InferenceResponse
from .pb_tensor import Tensor

NO_RESPONSE: Final = (
    "execute must return a response for each request or send it before it returns, "
    "got none for this one"
)


@final
class ResponseMaker:
    """Makes the server's responses of those of one model.

    Args:
      source: The model's files.
      config: Its configuration.
      log_fault: Told of each response that does not fit it; may be called from any thread.

    Attributes:
      output_names: The outputs that clients may ask for, in the configuration's order.
      unloaded: Whether the model was unloaded, so that it has no requests any more.

    Raises:
      RequestError: an output or state has no data type, or a parameter is not allowed.
    """

    def __init__(
        self, source: ModelSource, config: ModelConfig, log_fault: Callable[[str], None]
    ) -> None:
        self._log_fault = log_fault
        spec = ModelSpec.from_config(config, source.version)
        self._name = source.name
        self._version = spec.version
        self._checks_outputs = not yes_parameter(config, "UNCHECKED_OUTPUTS")
        self._outputs = forms_of(spec)
        self._states = state_forms_of(spec)
        self.output_names = tuple(self._outputs)
        self.unloaded = False

    def response(self, request: InferRequest, response: InferenceResponse) -> InferResponse:
        """Return the server's form of a model's response; a faulty one becomes an error."""
        failed = response._error
        if failed is not None:
            return self.failure(request, failed._message, failed._code)
        asked = names_asked_for(request)
        outputs: dict[str, ServerTensor] = {}
        states: dict[str, ServerTensor] = {}
        for tensor in response._tensors:
            name = tensor._name
            form = self._outputs.get(name)
            state = self._states.get(name)
            unknown = form is None and state is None
            if unknown or name in outputs or name in states:
                what = "is not in its configuration" if unknown else "came twice"
                return self._misfit(request, f"output '{name}' {what}")
            try:
                if state is not None:
                    states[name] = self._tensor(tensor, state)
                if form is not None and (asked is None or name in asked):
                    outputs[name] = self._tensor(tensor, form)
            except BaseException as error:  # noqa: BLE001 - elements of BYTES are the model's code
                return self._misfit(request, f"output '{name}' {text_of(error)}")
        answer = InferResponse(self._name, self._version, request.id, list(outputs.values()))
        if self._states:
            answer.states = states
        if response._parameters is not None:
            answer.parameters = response._parameters
        return answer

    def _misfit(self, request: InferRequest, what: str) -> InferResponse:
        self._log_fault(cut_to(what))
        return self.failure(request, f"model '{self._name}': {what}")

    def _tensor(self, tensor: Tensor, form: OutputForm) -> ServerTensor:
        array = np.asarray(tensor.as_numpy())  # a matrix has other methods
        datatype = form.datatype
        if array.dtype != form.dtype:
            found = datatype_of(array.dtype)
            if found is None or (self._checks_outputs and found != datatype):
                raise ValueError(f"must be {datatype}, got {found or array.dtype}")
            datatype = found
            if datatype != BYTES:
                array = array.astype(NUMPY_DTYPES[datatype])  # of another byte order
        shape = array.shape
        rank = len(form.model_shape)
        if len(shape) == rank:
            shape = form.to_client(shape)
        elif self._checks_outputs:
            raise ValueError(
                f"must have {rank} dimensions as in {shape_text(form.model_shape)}, "
                f"got shape {shape_text(shape)}"
            )
        # Copied, because the model may use its array again before this response is written; and
        # copied into what goes over the wire, so that the event loop need not convert it.
        if datatype == BYTES:
            raw = encode_bytes_elements(array.ravel().tolist())
        else:
            raw = array.tobytes()
        return ServerTensor(form.name, datatype, shape, raw=raw)

    def failure(
        self, request: InferRequest, message: str, code: ErrorCode = ErrorCode.INTERNAL
    ) -> InferResponse:
        """Return the error response to a request; a message without end is cut."""
        error = RequestError(code, cut_to(message), reason=FailureReason.BACKEND)
        return InferResponse(self._name, self._version, request.id, error=error)
