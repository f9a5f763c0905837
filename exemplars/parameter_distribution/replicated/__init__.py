"""Every worker holds a full copy of the parameters."""
