"""In a wheel, leads to ddl_atlas/atlas, which lies beside the data that it reads."""

import ddl_atlas

ddl_atlas.lead(globals())
