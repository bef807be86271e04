"""Sends each element as a response; a negative one as an error, and it raises on -2."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            sender = request.get_response_sender()
            for value in values:
                if value < 0:
                    error = pb_utils.TritonError("said the model", pb_utils.TritonError.NOT_FOUND)
                    sender.send(pb_utils.InferenceResponse(error=error))
                else:
                    output = pb_utils.Tensor("OUTPUT0", value.reshape(1))
                    sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
