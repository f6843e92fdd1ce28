"""What a malicious server does to its broadcasts and to who takes part, one way per file."""
