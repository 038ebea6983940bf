"""vLLM's real scheduler and ours on the same traces, step by step (docs/oracle.md): `python -m tests.oracle`.

`schedulers` drives the real one in its own Python (`scripts/oracle_driver` runs there) and the simulator's, both under
the simulator's cost tables; `compare` sets the two side by side, `cases` has the traces, `fuzz` random requests and
settings, `record` writes the real scheduler's steps down for the everyday tests, `overlay` lays the sources of a
release over an installed one.
"""
