"""Raises when it ends."""

from seen import Sees


class TritonPythonModel(Sees):
    def see_call(self, request):
        return "called"

    def finalize(self):
        raise ValueError("asked to")
