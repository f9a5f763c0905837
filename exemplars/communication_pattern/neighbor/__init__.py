"""Each rank talks to a few others, and never to all."""
