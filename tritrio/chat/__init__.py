"""A chat in the terminal, with a model behind an OpenAI API: a client, which imports no server."""
