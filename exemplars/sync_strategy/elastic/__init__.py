"""Agreement while workers die, come back, or change in number."""
