"""One HTML file that needs nothing but a browser: what all pages of Proctor have in common.

Python puts the numbers into the page as JSON; a script draws them, with ``parts.js``. Nothing that
came from outside is ever markup: JSON is escaped, the script inserts text only, and the page's own
security policy lets no other script run and nothing be fetched but the videos near it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any


def document_html(
    name: str, values: Mapping[str, Any], *, styles: tuple[str, ...], media: bool = False
) -> str:
    """Return the page whose main part is ``NAME.html``; ``NAME.js`` draws ``values`` into it.

    ``values`` have a title. ``media``: the page holds videos itself, or is served with pictures.
    """
    style = "".join(_resource(file) for file in styles)
    script = _resource("parts.js") + _resource(f"{name}.js")
    parts = {
        "policy": _security_policy(style, script, live=bool(values.get("live")), media=media),
        "title": html_text(str(values["title"])),
        "style": style,
        "body": _resource(f"{name}.html"),
        "values": script_json(values),
        "script": script,
    }
    # One pass, so that a title that reads like a placeholder stays a title.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _resource("document.html"))


def script_json(values: Any) -> str:
    """Return JSON that can stand inside a script element: ASCII, without ``<``, ``>`` and ``&``."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def html_text(text: str) -> str:
    """Return text as HTML that any encoding can hold, even that of an undecodable file name."""
    shown = text.encode("utf-8", "backslashreplace").decode()
    return html.escape(shown).encode("ascii", "xmlcharrefreplace").decode()


def _resource(name: str) -> str:
    return resources.files("proctor.report").joinpath(name).read_text(encoding="utf-8")


def _security_policy(style: str, script: str, *, live: bool, media: bool) -> str:
    """Allow exactly our style and script, and videos (live: also news) from where the page lies."""
    news = "connect-src 'self'; " if live or media else ""
    videos = "'self' blob:" if media else "'self' file:"
    pictures = "'self' data:" if media else "data:"
    return (
        f"default-src 'none'; {news}style-src {_sha256(style)}; script-src {_sha256(script)}; "
        f"media-src {videos}; img-src {pictures}; base-uri 'none'; form-action 'none'"
    )


def _sha256(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
