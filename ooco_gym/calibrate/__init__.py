"""Fits of a chip to measured operators or whole iterations: readers, fits, and errors on unseen
data.

`ooco-gym calibrate` (`command.py`) reads measurements (`sources`), drops impossible ones (`rows`),
fits the forms of `ooco_gym.perf.timing` (`operators`, `steps`, `engine_fits`) and writes a chip
(`chip`).
"""
