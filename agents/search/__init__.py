"""Search and imitation: parameters of rules, linear rules, and teachers that an agent starts from."""
