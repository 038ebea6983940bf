"""Runs inside the engine's Python: drives a real serving engine and records each of its iterations.

It may import only the standard library and the engine. `__main__` talks to the measuring process
over pipes, `loop` defines the engine's interface, runs batches and serves requests, and
`vllm_engine` is the engine of vLLM.
"""
