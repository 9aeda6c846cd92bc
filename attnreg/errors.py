"""Every error that attnreg raises on purpose, under one base class.

Each message says what came, what is allowed, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AttnregError(Exception):
    """Base of every error raised on purpose by attnreg."""


class ShapeError(AttnregError, ValueError):
    """A tensor or a mask has a shape that does not fit the call."""


class OptionError(AttnregError, ValueError):
    """An option is unknown, of the wrong type, or outside its range."""


class LengthError(AttnregError, ValueError):
    """A sequence is longer than the module was built for."""


class DtypeError(AttnregError, TypeError):
    """A tensor has a dtype (or a device) that the call does not allow."""


class MaskTypeError(AttnregError, TypeError):
    """A field of a mask has the wrong type, such as an integer where a boolean is needed."""


class UnknownVariant(AttnregError, LookupError):
    """No installed plugin registers a variant of this name."""


class UnsupportedMask(AttnregError, NotImplementedError):
    """A variant cannot honour a field of the mask; it is refused, never ignored."""


class UnsupportedFeature(AttnregError, NotImplementedError):
    """A variant cannot do what the call asks for, such as decoding or grouped heads."""


class UnsupportedImplementation(UnsupportedFeature):
    """The implementation that was asked for by name cannot run this call; another one can."""


class UnsupportedOption(OptionError, UnsupportedFeature):
    """A common option, such as ``scale`` or ``dropout``, that this variant does not have."""


class BrokenPlugin(AttnregError, ImportError):
    """A plugin is installed but could not be loaded; the reason is chained."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def sentence(error: BaseException) -> str:
    """Return an error's message on one line, without what would steer a terminal."""
    try:
        text = str(error)
    except Exception:  # a stranger's error may even fail to print
        return ""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())


def reason(error: BaseException) -> str:
    """Return an error's type and message on one line."""
    return f"{type(error).__name__}: {sentence(error)}".removesuffix(": ")
