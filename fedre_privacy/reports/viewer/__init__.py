"""Many results at once: what lies below a folder, as one page that works without a network."""
