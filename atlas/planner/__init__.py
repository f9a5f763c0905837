"""The planner: what a strategy costs for a model on a cluster, before it is run."""
