"""The version of the package, which is that of the daemon it was built with."""

__version__ = "0.1.0"
