"""Parts of attacks on gradients and model updates."""
