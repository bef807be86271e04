"""Answers with the error whose code MODE names."""

from seen import Sees, mode_of

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    def answer(self, request):
        code = getattr(pb_utils.TritonError, mode_of(request))
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("said the model", code))
