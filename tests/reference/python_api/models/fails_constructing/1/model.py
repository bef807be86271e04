"""Raises while it is made."""

from seen import Sees


class TritonPythonModel(Sees):
    def __init__(self):
        raise ValueError("asked to")
