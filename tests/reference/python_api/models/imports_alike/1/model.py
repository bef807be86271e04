"""Has a module of the same name as another model."""

import helper
from seen import Sees


class TritonPythonModel(Sees):
    def see_helper(self, request):
        return helper.NAME
