"""The subcommands of attn-course, one module each.

A module has `add(parsers)`, which adds its argparse parser, and `execute(arguments)`, which does
the work and returns the exit status: 0 when everything agrees, 1 when something does not.
"""
