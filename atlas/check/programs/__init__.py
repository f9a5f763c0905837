"""Right programs of at most 60 lines; each bug of `taxonomy/bugs/` changes one place.

They are scripts for torchrun and for `atlas check`, read as text and never imported.
"""
