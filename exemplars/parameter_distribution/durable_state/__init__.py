"""State outlives the process that holds it: on disk, or with a peer."""
