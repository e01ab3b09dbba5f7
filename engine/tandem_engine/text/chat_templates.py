"""The chat templates of a checkpoint: where they stand, and which one a conversation takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tandem_engine.api.errors import CheckpointError, InvalidParameter
from tandem_engine.text.chat_template import ChatTemplate
from tandem_engine.text.tokenizer_files import SETTINGS_FILE, named_tokens, read_json, read_text

_DEFAULT_FILE: Final = "chat_template.jinja"
_OTHERS_FOLDER: Final = "additional_chat_templates"
_SUFFIX: Final = ".jinja"
_PROCESSOR_FILE: Final = "chat_template.json"
"""Of models with a processor, as transformers 4 saved it; read where no other file has one."""
_DEFAULT: Final = "default"
_TOOL_USE: Final = "tool_use"


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """The templates that a conversation can get, as in transformers.

    A checkpoint may have others (`rag` …), which a caller of transformers would name.
    """

    default: ChatTemplate | None
    tool_use: ChatTemplate | None = None
    """For conversations with tools; None: the default is for them, too."""

    @property
    def constants(self) -> frozenset[str]:
        """Texts in the expressions of any."""
        either = (self.default, self.tool_use)
        return frozenset().union(
            *(template.constants for template in either if template is not None)
        )

    def choose(self, variables: Mapping[str, Any]) -> ChatTemplate:
        """Return the template of a conversation whose template has such variables.

        Raises:
            InvalidParameter: The checkpoint has none for it.
        """
        if self.tool_use is not None and variables.get("tools") is not None:
            return self.tool_use
        if self.default is None:
            raise InvalidParameter(
                f"The model has no chat template named {_DEFAULT!r}; give tools in "
                f"chat_template_kwargs for the one named {_TOOL_USE!r}, or use /v1/completions "
                "with a plain prompt.",
                parameter="messages",
            )
        return self.default


def read_chat_templates(folder: Path, settings: Mapping[str, Any]) -> ChatTemplates | None:
    """Read the chat templates of a checkpoint; None: it has none that a conversation can get.

    Args:
        folder: The checkpoint.
        settings: Those of tokenizer_config.json.

    Raises:
        CheckpointError: One cannot be read.
    """
    sources = _sources(folder, settings)
    default, tool_use = (
        _compiled(*sources[name], settings) if name in sources else None
        for name in (_DEFAULT, _TOOL_USE)
    )
    return ChatTemplates(default, tool_use) if default or tool_use else None


def _compiled(path: Path, source: Any, settings: Mapping[str, Any]) -> ChatTemplate:
    if not isinstance(source, str):
        raise CheckpointError(f"{path}: chat_template is neither a text nor a list of templates.")
    try:
        return ChatTemplate(source, named_tokens(settings))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _sources(folder: Path, settings: Mapping[str, Any]) -> dict[str, tuple[Path, Any]]:
    """Name of a template → its file and text; files of their own go before the settings."""
    if files := _files(folder):
        return {name: (path, read_text(path)) for name, path in files.items()}
    path, template = folder / SETTINGS_FILE, settings.get("chat_template")
    if not template:
        path = folder / _PROCESSOR_FILE
        template = read_json(path).get("chat_template")
    if isinstance(template, list):  # several named templates, as older checkpoints have them
        entries = (entry for entry in template if isinstance(entry, dict))
        return {entry.get("name", ""): (path, entry.get("template")) for entry in entries}
    return {_DEFAULT: (path, template)} if template else {}


def _files(folder: Path) -> dict[str, Path]:
    others = sorted((folder / _OTHERS_FOLDER).glob(f"*{_SUFFIX}"))
    default = folder / _DEFAULT_FILE
    files = {_DEFAULT: default} if default.is_file() else {}
    return files | {path.name.removesuffix(_SUFFIX): path for path in others}
