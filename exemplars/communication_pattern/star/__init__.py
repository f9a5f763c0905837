"""Everything goes through one server."""
