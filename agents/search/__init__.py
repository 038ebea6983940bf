"""Search for parameters of heuristics, and for linear policies, over whole episodes."""
