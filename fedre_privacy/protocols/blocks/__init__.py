"""Plain functions that protocols are made of."""
