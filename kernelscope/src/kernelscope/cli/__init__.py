"""The command `kernelscope`: one module a subcommand, and what their calls share."""
