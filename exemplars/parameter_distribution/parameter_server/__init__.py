"""Servers own the parameters; workers read them and send updates."""
