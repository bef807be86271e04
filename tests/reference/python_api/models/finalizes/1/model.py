"""Leaves a file when it ends."""

import os

from seen import Sees

import triton_python_backend_utils as pb_utils

HERE = os.path.dirname(os.path.abspath(__file__))


class TritonPythonModel(Sees):
    calls = 0

    def see_call(self, request):
        self.calls += 1
        return self.calls

    def finalize(self):
        pb_utils.Logger.log_info("marker-finalize")
        with open(os.path.join(HERE, "finalized"), "a") as file:
            file.write(f"finalized after {self.calls}\n")
