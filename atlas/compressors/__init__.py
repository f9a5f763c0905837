"""Compressors on one page: the same recorded gradients through all of them.

    atlas compressors top-k-error-feedback powersgd

What runs is each exemplar's own `train`, unchanged; `atlas.compressors.protocol` says
what the study needs of it.
"""
