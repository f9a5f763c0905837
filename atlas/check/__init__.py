"""Is your code right? A script against one process, a part against a contract.

capture.py    keeps its weights and gradients at every optimizer step
whole.py      names aligned, shards made whole
compare.py    the first step and tensor that differ, by a measured yardstick
diagnosis.py  what the evidence says the mistake is
checking.py   all of it, from the command's arguments to a plain result
"""
