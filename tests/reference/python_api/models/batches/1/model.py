"""Several rows a request."""

import numpy as np
from seen import mode_of

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [getattr(self, mode_of(request))(request) for request in requests]

    def texts(self, request, value):
        rows = pb_utils.get_input_tensor_by_name(request, "MODE").shape()[0]
        return pb_utils.Tensor("SEEN", np.array([[f'"{value}"'.encode()]] * rows, np.object_))

    def with_rows(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "X")
        outputs = [self.texts(request, list(tensor.shape()))]
        outputs.append(pb_utils.Tensor("Y", tensor.as_numpy() * 2))
        return pb_utils.InferenceResponse(outputs)

    def with_text(self, request):
        shape = pb_utils.get_input_tensor_by_name(request, "MODE").shape()
        return pb_utils.InferenceResponse([self.texts(request, list(shape))])
