"""Who holds what?"""
