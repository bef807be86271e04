"""Imports what there is not."""

import there_is_no_such_module


class TritonPythonModel:
    def execute(self, requests):
        return [there_is_no_such_module]
