"""Applied on arrival."""
