"""Renders the templates of the pages: escapes what clients sent, and forbids scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from starlette.responses import HTMLResponse, Response

from gemmill.library.arithmetic import arithmetic_named
from gemmill.library.version import __version__

_UNKNOWN = "\N{EN DASH}"


def content_policy(*sources: str) -> dict[str, str]:
    """Headers of a page that loads nothing but what these directives allow."""
    directives = ("default-src 'none'", *sources, "form-action 'self'", "frame-ancestors 'none'")
    return {
        "Content-Security-Policy": "; ".join(directives),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",  # with no-referrer, forms would send no Origin
        "Cache-Control": "no-store",
    }


_NO_SCRIPTS = content_policy("style-src 'self'", "img-src 'self' data:")
"""Scripts are forbidden, since the pages show names and problems from clients."""


def rendered(template: str, title: str, **content: Any) -> Response:
    """A page from a template."""
    html = (
        _environment()
        .get_template(f"{template}.html")
        .render(title=title, section=template, version=__version__, **content)
    )
    return HTMLResponse(html, headers=_NO_SCRIPTS)


def template_text(name: str) -> str:
    """The text of a file in the folder of templates."""
    return (resources.files("gemmill.service.pages") / "templates" / name).read_text(encoding="utf-8")


def facts(members: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The members of a dataclass as texts, by name in words; without those that are None."""
    texts: dict[str, str] = {}
    for member, value in members.items():
        name = prefix + member.replace("_", " ")
        if isinstance(value, Mapping):
            texts |= facts(value, f"{name} ")
        elif value is not None:
            texts[name] = _fact(value)
    return texts


def _fact(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ("x" if all(isinstance(item, int) for item in value) else " ").join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _microseconds(us: float) -> str:
    """A time; a dash if it is not known."""
    return _UNKNOWN if math.isnan(us) else f"{us:,.{0 if us >= 1000 else 1 if us >= 10 else 2}f}"


def _tflops(us: float, flops: int) -> str:
    """The speed of a kernel that needs ``us`` microseconds, in TFLOP/s; a dash if the time is not known."""
    return _rate(flops / us / 1e6 if us else math.nan)


def _rate(rate: float) -> str:
    """A rate with three digits; a dash if it is not known."""
    return _UNKNOWN if math.isnan(rate) else f"{rate:,.{0 if rate >= 100 else 1 if rate >= 10 else 2}f}"


def _percent(share: float) -> str:
    """A share; a dash if it is not known."""
    return _UNKNOWN if math.isnan(share) else f"{share:.{0 if share >= 0.1 else 1}%}"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_text),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"microseconds": _microseconds, "tflops": _tflops, "arithmetic": arithmetic_named}
    environment.filters |= {"rate": _rate, "percent": _percent}
    return environment
