"""Raises what MODE asks for."""

from seen import Sees

import triton_python_backend_utils as pb_utils


class OwnError(Exception):
    """With a text beyond ASCII."""

    def __str__(self):
        return "größer als erlaubt"


class NoTextError(Exception):
    """Whose text cannot be had."""

    def __str__(self):
        raise RuntimeError("no text")


class TritonPythonModel(Sees):
    def see_value_error(self, request):
        raise ValueError("asked to")

    def see_model_exception(self, request):
        raise pb_utils.TritonModelException("asked to")

    def see_own_error(self, request):
        raise OwnError

    def see_error_without_text(self, request):
        raise NoTextError

    def see_empty_error(self, request):
        raise ValueError

    def see_long_text(self, request):
        raise ValueError("x" * 500)

    def see_chain(self, request):
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    def see_assertion(self, request):
        raise AssertionError

    def see_memory_error(self, request):
        raise MemoryError

    def see_stop_iteration(self, request):
        raise StopIteration

    def see_recursion(self, request):
        return self.see_recursion(request)

    def see_that_it_still_works(self, request):
        return "yes"
