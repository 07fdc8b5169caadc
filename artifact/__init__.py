"""Reproducibility artifact for "Gaps in Operator Fusion for Deep Learning Systems"."""

__version__ = "0.1.0"
