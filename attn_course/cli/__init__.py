"""The command `attn-course`, one module a subcommand."""
