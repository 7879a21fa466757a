"""The copy engine of sm_90 (TMA): bulk copies and reductions, which run by themselves.

Start with engine (issue, and the ends of copies); boxes finds the elements of a tensor map's boxes,
transfers holds what is under way, places finds shared memory, told makes events of it.
"""
