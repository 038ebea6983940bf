"""S3-FIFO (Yang et al., SOSP 2023), said in `ooco_gym.sim.s3fifo`: two FIFO queues and a list of ghosts."""

from ooco_gym.policy.policy import Policy
from ooco_gym.sim.retention import S3FIFO

policy = Policy("s3fifo", keeps=S3FIFO)
