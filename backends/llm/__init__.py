"""The engine that generates text: plans steps, executes them, chooses tokens.

Everything but the execution of a step is pure; see docs/llm.md.
"""
