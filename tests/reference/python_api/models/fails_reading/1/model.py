"""Is no Python."""

class TritonPythonModel
    pass
