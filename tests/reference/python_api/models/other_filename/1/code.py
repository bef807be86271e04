"""Is read from a file of another name."""

import os

from seen import Sees


class TritonPythonModel(Sees):
    def see_file(self, request):
        return os.path.basename(__file__)
