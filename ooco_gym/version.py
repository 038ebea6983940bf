"""The package's version, by itself so that the package's own modules can name it without importing the root."""

from __future__ import annotations

__version__ = "0.2.0"
