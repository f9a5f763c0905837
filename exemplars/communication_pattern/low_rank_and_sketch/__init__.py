"""A small linear summary of the tensor is sent."""
