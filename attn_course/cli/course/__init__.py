"""Subcommands for learners and teachers: exercises, lessons."""
