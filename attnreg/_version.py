"""The one version of the core, every plugin and the playground."""

__version__ = "0.1.0"
