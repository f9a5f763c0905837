"""How far the oracle is to be trusted: predicted steps against measured ones."""
