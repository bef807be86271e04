"""Two instances with nothing in common."""

import json

from seen import Sees


class TritonPythonModel(Sees):
    shared = []

    def initialize(self, args):
        self.shared.append(args["model_instance_name"])
        self.config = json.loads(args["model_config"])
        self.args = args

    def see_instance_group(self, request):
        return self.config["instance_group"]

    def see_parameter(self, request):
        return self.config["parameters"]["given"]["string_value"]

    def see_kind(self, request):
        return [self.args["model_instance_kind"], self.args["model_instance_device_id"]]

    def see_class_attribute(self, request):
        return len(self.shared)
