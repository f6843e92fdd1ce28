"""Parts that attacks are composed of."""
