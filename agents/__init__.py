"""Agents that learn, search and look ahead in the environments of ooco_gym, a subpackage for each."""

__path__ = __import__("pkgutil").extend_path(__path__, __name__)  # a user's folder without `__init__.py` has its place
