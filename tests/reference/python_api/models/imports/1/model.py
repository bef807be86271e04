"""Where code may be imported from."""

import os
import sys

import beside_the_version
import helper
from seen import Sees, outcome

HERE = os.path.dirname(os.path.abspath(__file__))


class TritonPythonModel(Sees):
    def see_helper(self, request):
        return helper.NAME

    def see_beside_the_version(self, request):
        return beside_the_version.NAME

    def see_module_name(self, request):
        return __name__.rpartition(".")[2]

    def see_file(self, request):
        return [os.path.basename(__file__), os.path.isabs(__file__), os.path.basename(HERE)]

    def see_class_module(self, request):
        return type(self).__module__.rpartition(".")[2]

    def see_search_path(self, request):
        paths = [os.path.realpath(path) for path in sys.path]
        return [os.path.realpath(HERE) in paths, os.path.realpath(os.path.dirname(HERE)) in paths]

    def see_late_import(self, request):
        return outcome(self.late)

    def late(self):
        import helper_used_late

        return helper_used_late.NAME

    def see_missing_module(self, request):
        def missing():
            import there_is_no_such_module  # noqa: F401

        return outcome(missing, words=["there_is_no_such_module"])

    def see_import_lib(self, request):
        import importlib

        return outcome(lambda: importlib.import_module("helper").NAME)
