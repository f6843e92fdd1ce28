"""A recorder of other people's federations on NVIDIA FLARE."""
