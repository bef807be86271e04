"""Fills in its whole configuration."""

from seen import Sees

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        config = auto_complete_model_config
        config.add_input({"name": "MODE", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1, 2], "optional": True})
        config.add_output({"name": "SEEN", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        self.args = args

    def see_config_helpers(self, request):
        import json

        config = json.loads(self.args["model_config"])
        return [
            pb_utils.get_input_config_by_name(config, "X"),
            pb_utils.get_output_config_by_name(config, "SEEN"),
            config["max_batch_size"],
        ]
