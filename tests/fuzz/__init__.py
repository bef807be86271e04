"""The parsers of what clients and model authors send, fed with rubbish."""
