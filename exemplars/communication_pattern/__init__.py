"""How do the bytes move?"""
