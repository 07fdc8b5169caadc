"""The four models: what they are made of, their weights, a PyTorch side and a native Flax side.

One file an architecture (`resnet`, `bert`, `gpt2`) says what its tensors and inputs are and where
its modules come from; `architecture` finds it by name. `philox` and `fill` give weights and inputs.
All of these need numpy only. The `torch_*` modules and `bundle_writer` need torch, the `flax_*`
modules need jax and flax.
"""
