"""Calls a model that calls a model."""

import json

from seen import Sees, outcome

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    def see_answer(self, request):
        return self.ask(request, "calls")

    def see_itself_known(self, request):
        return outcome(pb_utils.is_model_ready, "chain")

    def ask(self, request, model):
        mode = pb_utils.get_input_tensor_by_name(request, "MODE")
        one = pb_utils.InferenceRequest(
            model_name=model, inputs=[mode], requested_output_names=["SEEN"]
        )
        response = one.exec()
        if response.has_error():
            return "error"
        return ["a", json.loads(response.output_tensors()[0].as_numpy()[0])]
