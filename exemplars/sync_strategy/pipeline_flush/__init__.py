"""Micro-batches overlap; one version; bubbles."""
