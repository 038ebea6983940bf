"""Agents that learn, search and look ahead in the environments of ooco_gym, a subpackage for each."""
