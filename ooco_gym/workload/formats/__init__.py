"""The trace formats that `read_trace` knows: one module each; a new one is a module and a line in `FORMATS`."""

from ooco_gym.workload.formats.azure import AZURE
from ooco_gym.workload.formats.base import Draft, TraceFormat
from ooco_gym.workload.formats.burstgpt import BURSTGPT
from ooco_gym.workload.formats.mooncake import MOONCAKE
from ooco_gym.workload.formats.own import OWN

FORMATS: dict[str, TraceFormat] = {item.name: item for item in (OWN, AZURE, MOONCAKE, BURSTGPT)}

__all__ = ["FORMATS", "Draft", "TraceFormat"]
