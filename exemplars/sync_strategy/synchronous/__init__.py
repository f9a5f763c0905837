"""An update uses one version."""
