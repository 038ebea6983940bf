"""From measured operators, or whole iterations, to a chip: readers, fits, errors on what the fit has not seen.

`ooco-gym calibrate` (`command.py`) reads measurements (`sources`), leaves out what cannot be right (`rows`), fits the
forms of `ooco_gym.perf.timing` (`operators`, `steps`, `engine_fits`) and writes a chip (`chip`).
"""
