"""Commands of the course's authors: records of a GPU, the benchmark book, the claims, the site.

`attn-course` finds them as entry points (pyproject.toml); nothing in attn_course imports them.
"""
