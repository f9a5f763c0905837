"""No flush; versions overlap."""
