"""Audits: what a defence's claim of privacy allows, beside what an attack on it has shown."""
