"""What a page and the terminal both show, as plain values: no HTML, no colors.

Each module computes one thing that is shown: `atlas.site` renders it to pages,
`atlas.commands` prints it. Neither of the two imports the other.
"""
