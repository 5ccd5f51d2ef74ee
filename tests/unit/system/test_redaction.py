"""Secrets in URLs, commands and maps are removed from what is written; the rest stays."""

from __future__ import annotations

import pytest

from proctor.system.redaction import is_redacted, redact, redact_text

SECRET = "hunter2-0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"ws://user:{SECRET}@host:8000/path",
        f"ws://{SECRET}@host",
        f"ws://host:8000/?token={SECRET}",
        f"wss://a/x?q={SECRET},ws://b:1/?y={SECRET}",
        f"https://host/#{SECRET}",
        f"rtsp://admin:{SECRET}@camera/stream",
        f"env MYSECRET={SECRET} python",
        f"docker run -e TOKEN={SECRET} -i image",
        f"docker run -e TOKEN='{SECRET} {SECRET}' -i image",
        f"sim --token {SECRET} --port 1",
        f"sim --api-key={SECRET}",
        f"sim --db-password '{SECRET}'",
        f"curl -H 'Authorization: Bearer {SECRET}' host",
        f"ws://user:p@{SECRET}@host:8000/path",
        f"env my_token={SECRET} python",
        f"env A=1 db.password='{SECRET} {SECRET}' python",
        f"python -m sim --policy.api_key={SECRET}",
        f"python -m sim --policy.api_key {SECRET}",
        f"curl -H 'X-Api-Key: {SECRET}' host",
        f"curl -H 'Authorization: Token {SECRET}' host",
        f"sim password:{SECRET}",
        "sim hf_abcdefghijklmnop0123456789",
        f"{{front: {{url: 'rtsp://a:{SECRET}@b', fps: 30}}}}",
        f"{{api_key: {SECRET}, size: 8}}",
        f'{{"password": "{SECRET}"}}',
    ],
)
def test_a_secret_is_removed_from_text(text: str) -> None:
    said = redact_text(text)
    assert SECRET not in said
    assert "hf_abc" not in said
    assert is_redacted(said)


@pytest.mark.parametrize(
    "text",
    [
        "ws://127.0.0.1:8000/path",
        "docker run -i --rm image:tag python",
        "ssh user@robot python",
        "lerobot/act_aloha",
        "outputs/train/first/checkpoints/last",
        "info.is_success>=0.5",
        "{observation.image: observation.images.top}",
        "put the cube into the bin",
        "ray://head:10001",
        "{max_tokens: 48, tokenizer: bert}",
        "author=me tokenizer=bert",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert redact_text(text) == text
    assert not is_redacted(text)


def test_maps_and_lists_are_searched() -> None:
    settings = {
        "env": {"kwargs": {"token": SECRET, "url": f"http://a:{SECRET}@b", "size": 8}},
        "cameras": [{"index_or_path": f"rtsp://a:{SECRET}@b"}],
        "rotation_key": "state",
        "max_tokens": 48,
        "tokens": [SECRET],
        "credentials": {"user": "me", "pin": SECRET},
    }
    written = redact(settings)
    assert SECRET not in str(written)
    assert written["env"]["kwargs"]["size"] == 8
    assert written["rotation_key"] == "state"
    assert written["max_tokens"] == 48
    assert is_redacted(written)
