"""Search: the parameters of rules, and linear rules, by whole episodes."""
