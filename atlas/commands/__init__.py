"""The commands of `atlas`, one file each; atlas/cli.py puts them together."""
