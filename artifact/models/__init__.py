"""The four models: what they are made of, their weights, a PyTorch side and a native Flax side.

`spec` and `tensors` say what a model is, `fill` gives it weights and inputs; those three need numpy
only. `torch_models` and `bundle_writer` need torch, the `flax_*` modules need jax and flax.
"""
