__path__ = __import__("pkgutil").extend_path(__path__, __name__)  # a user's folder without `__init__.py` has its place
