"""The whole group exchanges at once."""
