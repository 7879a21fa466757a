"""The command `attn-course`, one module a subcommand.

Each has `add(parsers)`, which declares the subcommand and its arguments, and `execute(arguments)`,
which runs it and returns the exit status. All but those that write records take --json too.
Commands of other packages, such as the authors', are found as entry points (`main.GROUP`).
"""
