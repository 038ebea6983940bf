"""`ooco-gym experiment bros`: BROS's evaluation, its latency, throughput and attainments beside the paper's."""

from experiments.bros.study import main

__all__ = ["main"]
