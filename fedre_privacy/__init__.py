"""What does a federated-learning protocol leak through its uploads, and at what price?"""

__version__ = "0.1.0"
