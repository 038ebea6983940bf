"""Prepares a process that compiles all there is: imports it, and lowers what most of it is built on.

It is a module because processes that are copied begin with imports (`jobs.pool`).
"""

from importlib import import_module

from ooco_gym.commands.compile import import_all
from ooco_gym.compile import lower_parts, postponed

with postponed():
    import_all()
    loop, mixed, state = (import_module(f"ooco_gym.{name}") for name in ("sim.loop", "policy.mixed", "sim.state"))
    lower_parts(loop.run, loop.RUN_SIGNATURE)
    lower_parts(mixed.schedule_v1, state.HOOK_SIGNATURE)
