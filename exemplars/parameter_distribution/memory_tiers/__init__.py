"""Part of the state lives in slower memory and is fetched in time."""
