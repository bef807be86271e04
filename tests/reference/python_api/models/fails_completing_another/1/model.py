"""Does not complete its configuration as it should."""

from seen import Sees

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        return pb_utils.ModelConfig({})

    def see_nothing(self, request):
        return None
