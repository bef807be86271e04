"""Doubles INPUT0, says what it saw of the request, and fails on a negative first element."""

import json

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        if values.size and values[0] == -1:
            error = pb_utils.TritonError("said the model", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        if values.size and values[0] == -2:
            raise ValueError("asked to")
        facts = {
            "id": request.request_id(),
            "correlation": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "outputs": sorted(request.requested_output_names()),
            "parameters": json.loads(request.parameters() or "{}"),
        }
        text = np.array([json.dumps(facts, sort_keys=True).encode()], np.object_)
        outputs = [pb_utils.Tensor("OUTPUT0", values * 2), pb_utils.Tensor("FACTS", text)]
        return pb_utils.InferenceResponse(outputs)
