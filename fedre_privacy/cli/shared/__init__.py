"""What each command does once its options are read. Only here is anything large imported."""
