"""Writes to the server's log."""

from seen import Sees, outcome

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    def initialize(self, args):
        pb_utils.Logger.log_info("marker-initialize")

    def finalize(self):
        pb_utils.Logger.log_info("marker-finalize")

    def see_info(self, request):
        return outcome(pb_utils.Logger.log_info, "marker-info")

    def see_warning(self, request):
        return outcome(pb_utils.Logger.log_warn, "marker-warning")

    def see_error(self, request):
        return outcome(pb_utils.Logger.log_error, "marker-error")

    def see_verbose(self, request):
        return outcome(pb_utils.Logger.log_verbose, "marker-verbose")

    def see_default_level(self, request):
        return outcome(pb_utils.Logger.log, "marker-default")

    def see_given_level(self, request):
        return outcome(pb_utils.Logger.log, "marker-given", pb_utils.Logger.WARNING)

    def see_given_level_verbose(self, request):
        return outcome(pb_utils.Logger.log, "marker-hidden", pb_utils.Logger.VERBOSE)

    def see_level_by_keyword(self, request):
        return outcome(
            lambda: pb_utils.Logger.log(msg="marker-keyword", level=pb_utils.Logger.ERROR)
        )

    def see_message_keyword(self, request):
        return outcome(lambda: pb_utils.Logger.log(message="marker-message"))

    def see_level_of_number(self, request):
        return outcome(lambda: pb_utils.Logger.log("marker-number", 1))

    def see_level_of_text(self, request):
        return outcome(lambda: pb_utils.Logger.log("marker-text", "INFO"))

    def see_number(self, request):
        return outcome(pb_utils.Logger.log_info, 3)

    def see_none(self, request):
        return outcome(pb_utils.Logger.log_info, None)

    def see_bytes(self, request):
        return outcome(pb_utils.Logger.log_info, b"marker-bytes")

    def see_percent(self, request):
        return outcome(pb_utils.Logger.log_info, "marker-percent %s %d")

    def see_beyond_ascii(self, request):
        return outcome(pb_utils.Logger.log_info, "marker-größe")

    def see_lines(self, request):
        return outcome(pb_utils.Logger.log_info, "marker-one\nmarker-two")

    def see_by_object(self, request):
        return outcome(lambda: pb_utils.Logger().log_info("marker-object"))
