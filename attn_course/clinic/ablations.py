"""Ablations: a kernel with one idea taken away at a time: 12 and 19 (kernels/ablations.toml), and
18 (kernels/hopper_ablations.toml).

An ablation is a kernel's own source, headers included, with a few exact replacements. It computes
the same attention, so a difference to the full kernel, in counters or in time, comes from the idea.
"""

import hashlib
import tomllib
from dataclasses import dataclass

from attn_course.ladder.headers import KERNEL_FOLDER, code_of
from attn_course.ladder.steps import step

from .edits import Edit, edited, edits_of, kernel_text


@dataclass(frozen=True)
class Ablation:
    """A kernel without one idea.

    Attributes:
        kernel: its entry point.
        name: short name of the idea that is missing; empty for the full kernel.
        edits: (old, new) texts; each old one is in the source exactly once.
        options: compiler options, for an idea that a constant turns off.
    """

    kernel: str
    name: str = ""
    edits: tuple[Edit, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """ "flash_async" for the full kernel, "flash_async without lanes" for an ablation."""
        return f"{self.kernel} without {self.name}" if self.name else self.kernel

    def source(self) -> str:
        """Return the kernel's text with the edits made. EditError: an edit does not fit."""
        return edited(kernel_text(step(self.kernel).path), self.edits, self.label)

    def source_hash(self) -> str:
        """Return the SHA-256 of the source without its comments, and of the options."""
        code = code_of(self.source())
        return hashlib.sha256("\n".join((code, *self.options)).encode()).hexdigest()


def _read(kind: str) -> tuple[Ablation, ...]:
    text = (KERNEL_FOLDER / f"{kind}.toml").read_text(encoding="utf-8")
    return tuple(
        Ablation(
            one["kernel"],
            one["name"],
            tuple(edits_of(one.get("edits", ""))),
            tuple(one.get("options", ())),
        )
        for one in tomllib.loads(text)["ablation"]
    )


ABLATIONS, HOPPER_ABLATIONS = _read("ablations"), _read("hopper_ablations")


def variants(kernel: str) -> dict[str, Ablation]:
    """Return the full kernel, as "", and each of its ablations by name."""
    every = (*ABLATIONS, *HOPPER_ABLATIONS)
    return {"": Ablation(kernel)} | {one.name: one for one in every if one.kernel == kernel}


def all_variants(kind: str = "ablations") -> dict[str, Ablation]:
    """Return `variants` of every kernel of a record of this kind, by label."""
    of_kind = HOPPER_ABLATIONS if kind == "hopper_ablations" else ABLATIONS
    kernels = dict.fromkeys(one.kernel for one in of_kind)
    return {one.label: one for kernel in kernels for one in variants(kernel).values()}


def sources(kind: str = "ablations") -> dict[str, str]:
    """Return the hashes of all variants by label: the edits as they are now."""
    return {label: one.source_hash() for label, one in all_variants(kind).items()}
