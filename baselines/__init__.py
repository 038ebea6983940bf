"""Published schedulers and our own, a file for each."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)  # a user's folder of this name without `__init__.py` stays importable
