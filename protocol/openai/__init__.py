"""OpenAI's API: requests as JSON, answers as JSON or server-sent events, errors in its shape."""
