"""Raises while it is initialized."""

from seen import Sees

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    def initialize(self, args):
        raise pb_utils.TritonModelException("asked to")
