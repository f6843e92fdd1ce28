"""How attacks run: targets in tiles, graph capture, messages of rounds, knowledge of defences."""
