"""Shared code of the commands and studies of the experiments."""
