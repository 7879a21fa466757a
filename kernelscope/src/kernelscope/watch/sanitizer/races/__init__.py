"""Races in memory that threads share: what touched each byte, and what orders the accesses."""
