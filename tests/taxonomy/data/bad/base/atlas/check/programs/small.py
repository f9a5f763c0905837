"""A program that bugs are planted in."""

total = 1
