"""How the bytes get from one memory to another."""
