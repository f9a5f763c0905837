"""When do the workers agree?"""
