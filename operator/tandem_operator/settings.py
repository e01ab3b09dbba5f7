"""The operator's settings file, read once at its start."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tandem_operator.render.settings import OperatorSettings
from tandem_serve.api.problems import ProblemsFound, validation_problems
from tandem_serve.api.yaml_text import YamlError, read_documents

__all__ = ["OperatorSettings", "SettingsError", "load_settings"]


class SettingsError(ProblemsFound):
    """The settings cannot be used."""


def load_settings(path: Path) -> OperatorSettings:
    """The settings in the YAML file at `path`.

    Raises:
        SettingsError: the file cannot be read, or what it holds cannot be used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError([f"{path}: no such file; name one with --config"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError([f"{path}: cannot be read: {error}"]) from None
    return parse_settings(text)


def parse_settings(text: str) -> OperatorSettings:
    """The settings in the YAML `text`.

    Raises:
        SettingsError: the text is not YAML, or what it holds cannot be used.
    """
    document = _read_yaml(text)
    try:
        return OperatorSettings.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SettingsError(validation_problems(OperatorSettings, error)) from None


def _read_yaml(text: str) -> Any:
    try:
        documents = read_documents(text)
    except YamlError as error:
        raise SettingsError([f"the settings cannot be read: {error}"]) from None
    if not documents:
        return {}
    if len(documents) > 1:
        raise SettingsError([f"the settings are {len(documents)} documents; keep one"])
    if not isinstance(documents[0], dict):
        raise SettingsError(["the settings are not a mapping; begin with replica: {image: …}"])
    return documents[0]
