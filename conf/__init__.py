"""Configuration files of ooco-gym, read by Hydra and by `ooco_gym.resources`."""
