"""Learning: algorithms, buffers, imitation, the trainer, its callbacks and loggers, and resuming a run."""
