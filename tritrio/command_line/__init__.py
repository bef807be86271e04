"""The command line.

`tables` say what options there are, `parsing` reads them, and `assembly` makes of them what the
server takes.
"""
