"""Results that others can repeat: claims in small files, their repetition, a leaderboard."""
