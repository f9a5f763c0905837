"""Whole layers live on different workers."""
