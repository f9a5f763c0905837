"""Samples travel to the few parameters that each of them needs."""
