"""Subcommands for learners and teachers: lessons, exercises, grades."""
