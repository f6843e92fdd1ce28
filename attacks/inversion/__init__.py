"""Inversion of representations: priors, optimisation, maps and decoders fitted to public images."""
