"""ooco-gym: a reinforcement-learning gym for co-locating online and offline LLM requests."""
