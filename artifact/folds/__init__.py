"""Rewrites of a model before compilation, each proven legal on the data flow of the model itself.

`conv_batchnorm` folds BatchNorm into the convolution before it, `layernorm_linear` folds the affine
part of a LayerNorm into the linear layers behind it. Neither changes the model that it is given.
"""

from __future__ import annotations
