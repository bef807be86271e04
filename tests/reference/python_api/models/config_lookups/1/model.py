"""The functions that look into a configuration, and the configuration itself."""

import json

from seen import Sees, outcome

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    def initialize(self, args):
        self.text = args["model_config"]
        self.config = json.loads(self.text)

    def see_an_input(self, request):
        return pb_utils.get_input_config_by_name(self.config, "TWO")

    def see_no_such_input(self, request):
        return pb_utils.get_input_config_by_name(self.config, "SEEN")

    def see_an_output(self, request):
        return pb_utils.get_output_config_by_name(self.config, "SEEN")

    def see_no_such_output(self, request):
        return pb_utils.get_output_config_by_name(self.config, "MODE")

    def see_no_inputs_at_all(self, request):
        return pb_utils.get_input_config_by_name({}, "MODE")

    def see_no_outputs_at_all(self, request):
        return pb_utils.get_output_config_by_name({}, "MODE")

    def see_a_text_for_a_config(self, request):
        return outcome(pb_utils.get_input_config_by_name, self.text, "MODE")

    def see_decoupled(self, request):
        function = pb_utils.using_decoupled_model_transaction_policy
        return [
            function(self.config),
            function({"model_transaction_policy": {"decoupled": True}}),
            function({"model_transaction_policy": {"decoupled": False}}),
            function({}),
        ]

    def see_decoupled_in_an_empty_policy(self, request):
        return outcome(
            pb_utils.using_decoupled_model_transaction_policy, {"model_transaction_policy": {}}
        )

    def see_parameters(self, request):
        return self.config["parameters"]

    def see_config(self, request):
        return self.config

    def see_order_of_members(self, request):
        return self.text.find('"input"') < self.text.find('"output"')
