"""Membership attacks on signals of worlds: what the uploads say of each slot, with coins known."""
