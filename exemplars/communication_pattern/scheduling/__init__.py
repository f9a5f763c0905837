"""What is sent when, and in how many pieces."""
