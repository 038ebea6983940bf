"""One Hypothesis profile for the simulator's tests: few but rich episodes, or many with HYPOTHESIS_PROFILE=thorough."""

import os

from hypothesis import HealthCheck, Phase, settings

_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("quick", max_examples=50, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=600, **_COMMON)
settings.register_profile("probe", max_examples=50, derandomize=True, phases=[Phase.generate], **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
