"""Does not complete its configuration as it should."""

from seen import Sees


class TritonPythonModel(Sees):
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        raise ValueError("asked to")

    def see_nothing(self, request):
        return None
