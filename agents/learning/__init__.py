"""Learning: algorithms, networks, buffers, the trainer, its callbacks and loggers, and the folder of a run."""
