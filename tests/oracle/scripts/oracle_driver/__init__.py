"""vLLM's real V1 scheduler, driven without a model, in the engine's own Python: needs vLLM and NumPy.

Nothing of ours, but for another `retention`. `iterations` needs NumPy alone; our side of the comparison imports it too.
"""
