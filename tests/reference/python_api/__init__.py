"""Python models that answer with what they see, and the requests that have them look."""
