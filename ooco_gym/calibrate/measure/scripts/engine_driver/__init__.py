"""Runs inside the engine's own Python: drives a real serving engine and records each of its iterations.

It must import nothing but the standard library and the engine: that interpreter has no ooco-gym. `__main__` talks with
the measuring process over pipes, `loop` says what an engine must offer, runs batches and serves requests,
and `vllm_engine` is the engine of vLLM.
"""
