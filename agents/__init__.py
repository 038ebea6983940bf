"""Agents that learn, search and look ahead on the environments of ooco_gym; one subpackage for each purpose."""
