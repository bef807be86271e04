"""Loads and unloads models, where that is not allowed."""

from seen import Sees, outcome

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    def see_load(self, request):
        return outcome(pb_utils.load_model, model_name="called", words=["explicit"])

    def see_load_with_config(self, request):
        return outcome(lambda: pb_utils.load_model(model_name="called", config="{}"))

    def see_unload(self, request):
        return outcome(pb_utils.unload_model, model_name="called", words=["explicit"])

    def see_unload_dependents(self, request):
        return outcome(lambda: pb_utils.unload_model(model_name="called", unload_dependents=True))

    def see_ready(self, request):
        return outcome(pb_utils.is_model_ready, model_name="called")

    def see_ready_version(self, request):
        return outcome(pb_utils.is_model_ready, model_name="called", model_version="1")

    def see_ready_other_version(self, request):
        return outcome(pb_utils.is_model_ready, model_name="called", model_version="9")

    def see_ready_unknown(self, request):
        return outcome(pb_utils.is_model_ready, model_name="there_is_none")

    def see_ready_failed(self, request):
        return outcome(pb_utils.is_model_ready, model_name="fails_initializing")

    def see_ready_itself(self, request):
        return outcome(pb_utils.is_model_ready, "explicit")

    def see_ready_version_of_number(self, request):
        return outcome(pb_utils.is_model_ready, "called", 1)

    def see_ready_version_of_text(self, request):
        return outcome(pb_utils.is_model_ready, "called", "one")

    def see_ready_no_name(self, request):
        return outcome(pb_utils.is_model_ready, "")
