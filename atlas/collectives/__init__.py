"""Every collective of the atlas beside gloo's own: called, timed and kept.

    atlas collectives                     # all of them, a few minutes
    atlas collectives --kind broadcast    # one kind, nothing is kept

`atlas.views.collectives` is the table with what each costs; `calls` calls them,
`timed` times them on the ranks, `study` keeps the figures in measurements/studies/.
"""
