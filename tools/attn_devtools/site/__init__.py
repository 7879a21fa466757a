"""The course as a static site: lessons, kernels, glossary and documents, which open from disk."""

from kernelscope.lazy import lazy

_NAMES = {
    "build": "SiteReport build_site",
    "published": "badges",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
