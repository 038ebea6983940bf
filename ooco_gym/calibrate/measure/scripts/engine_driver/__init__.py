"""Runs inside the engine's own Python: drives a real serving engine and records each of its iterations.

It must import nothing but the standard library and the engine: that interpreter has no ooco-gym. `__main__` talks with
the measuring process over pipes, `loop` runs batches and serves requests, `interface` is what an engine must offer, and
`vllm_engine` is the one for vLLM.
"""
