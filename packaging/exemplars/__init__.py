"""In a wheel, leads to ddl_atlas/exemplars, which lies beside the texts about it."""

import ddl_atlas

ddl_atlas.lead(globals())
