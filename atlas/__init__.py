"""The machinery of The Atlas of Distributed Deep Learning."""

__version__ = "0.1.0"
