"""What `initialize` gets, and what is kept until `execute`."""

import os

from seen import Sees


class TritonPythonModel(Sees):
    calls = 0

    def __init__(self):
        self.order = ["__init__"]

    def initialize(self, args):
        self.order.append("initialize")
        self.args = args

    def see_names(self, request):
        return sorted(self.args)

    def see_types(self, request):
        return sorted({type(value).__name__ for value in self.args.values()})

    def see_type(self, request):
        return type(self.args).__name__

    def see_instance(self, request):
        names = "model_name model_version model_instance_kind model_instance_device_id"
        return [self.args[name] for name in names.split()]

    def see_instance_name(self, request):
        return self.args["model_instance_name"]

    def see_repository(self, request):
        path = self.args["model_repository"]
        return [os.path.isabs(path), os.path.basename(path), sorted(os.listdir(path))]

    def see_order(self, request):
        return self.order

    def see_attributes_live_on(self, request):
        before = self.calls
        self.calls = 3
        kept, self.calls = self.calls, 0
        return [before, kept]
