"""Every entry is sent in fewer bits."""
