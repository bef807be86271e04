"""Answers each request with its own input."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """INPUT0 FP32 [-1] -> OUTPUT0, the same tensor."""

    def execute(self, requests):
        """One response a request, in order."""
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            output = pb_utils.Tensor("OUTPUT0", values)
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
