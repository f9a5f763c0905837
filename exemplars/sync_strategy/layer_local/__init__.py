"""No gradient crosses the whole network."""
