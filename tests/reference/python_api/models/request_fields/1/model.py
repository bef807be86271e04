"""What a request says of itself, with outputs to ask for."""

import json

import numpy as np
from seen import Sees, mode_of, outcome, seen_tensor

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    def answer(self, request):
        outputs = [seen_tensor(getattr(self, mode_of(request))(request))]
        outputs += [pb_utils.Tensor(name, np.ones(1, np.float32)) for name in ("SECOND", "FIRST")]
        return pb_utils.InferenceResponse(outputs)

    def see_request_id(self, request):
        return request.request_id()

    def see_correlation_id(self, request):
        return request.correlation_id()

    def see_flags(self, request):
        return request.flags()

    def see_timeout(self, request):
        return request.timeout()

    def see_parameters(self, request):
        text = request.parameters()
        return [type(text).__name__, json.loads(text) if text else text]

    def see_parameters_text(self, request):
        return request.parameters()

    def see_outputs(self, request):
        return sorted(request.requested_output_names())

    def see_outputs_type(self, request):
        return type(request.requested_output_names()).__name__

    def see_is_cancelled(self, request):
        return request.is_cancelled()

    def see_trace_context(self, request):
        return outcome(lambda: request.trace().get_context())

    def see_trace(self, request):
        return request.trace() is None

    def see_set_flags(self, request):
        request.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        return request.flags()

    def see_sender(self, request):
        return outcome(request.get_response_sender)

    def see_same_sender_twice(self, request):
        return request.get_response_sender() is request.get_response_sender()

    def see_sender_is_cancelled(self, request):
        return request.get_response_sender().is_cancelled()

    def see_attributes_can_be_added(self, request):
        return outcome(setattr, request, "note", 1)

    def see_repr(self, request):
        return "InferenceRequest" in repr(request)
