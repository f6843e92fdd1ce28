"""One federated loop, its client and server steps, and the recorder of what they exchange."""
