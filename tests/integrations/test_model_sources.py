"""What is loaded that makes tokens, or asks for them, by the names of modules."""

from __future__ import annotations

import sys
import types

import pytest

from tailwatch.integrations import model_sources


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process in which none is."""
    for name in (*model_sources._ENGINES, *model_sources._CLIENTS, *model_sources._ANY_SERVERS):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return monkeypatch


def load(loaded: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        loaded.setitem(sys.modules, name, types.ModuleType(name))


def test_nothing_is_loaded(loaded: pytest.MonkeyPatch) -> None:
    """Nor is anything imported to find that out."""
    before = set(sys.modules)
    assert model_sources.model_engines() == model_sources.model_clients() == ()
    assert set(sys.modules) == before


def test_a_client_of_models_stands_before_one_of_any_server(loaded: pytest.MonkeyPatch) -> None:
    """openai brings httpx."""
    load(loaded, "httpx")
    assert model_sources.model_clients() == ("httpx",)
    load(loaded, "openai", "google.genai")
    assert model_sources.model_clients() == ("openai", "google.genai")


def test_engines_are_named_by_their_package(loaded: pytest.MonkeyPatch) -> None:
    """transformers, once its generation is loaded: a tokenizer alone makes no tokens."""
    load(loaded, "transformers", "llama_cpp")
    assert model_sources.model_engines() == ("llama_cpp",)
    load(loaded, "transformers.generation.utils")
    assert model_sources.model_engines() == ("llama_cpp", "transformers")
