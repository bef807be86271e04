"""Says whether it is ready."""

from seen import Sees


class TritonPythonModel(Sees):
    def is_ready(self):
        return False

    def see_call(self, request):
        return "called"
