"""The package's version, in its own module so that the package's modules need not import the root."""

from __future__ import annotations

__version__ = "0.2.0"
