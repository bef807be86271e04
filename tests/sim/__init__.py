"""The whole server on virtual time: see `tests.support.memory_server`."""
