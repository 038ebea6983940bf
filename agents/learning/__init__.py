"""Learning: algorithms, buffers, imitation, the trainer, its callbacks and loggers, and how a stopped run goes on."""
