"""The extras of the package: which of them installs a module that a command cannot import.

*Source*: `[project.optional-dependencies]` in pyproject.toml; a test compares the two.
"""

import sys
from importlib.util import find_spec
from types import MappingProxyType

from stilltide.pipeline.errors import MissingExtraError

EXTRA_OF_MODULE = MappingProxyType(
    {
        "aiohttp": "cli",
        "click": "cli",
        "crc32c": "cli",
        "kafka": "cli",
        "pydantic": "cli",
        "pydantic_core": "cli",
        "pydantic_settings": "cli",
        "rich": "cli",
        "yarl": "cli",
        "aiokafka": "worker",
        "faust": "worker",
        "mode": "worker",
        "numpy": "spark",
        "pandas": "spark",
        "py4j": "spark",
        "pyarrow": "arrow",
        "pyspark": "spark",
        "jinja2": "console",
        "markupsafe": "console",
        "sqlalchemy": "databases",
        "faststream": "faststream",
        "opentelemetry": "otel",
    }
)
"""The smallest extra that installs a module, by the module's name."""


def missing_extra(what: str, error: ModuleNotFoundError) -> MissingExtraError | None:
    """The error to raise instead of `error`; None: no extra installs the module.

    Args:
        what: what cannot be used without the module, such as `stilltide worker`.
        error: the failed import.
    """
    module = (error.name or "").partition(".")[0]
    extra = EXTRA_OF_MODULE.get(module)
    if extra is None:
        return None
    return MissingExtraError(
        f"{what} needs the extra `{extra}`, which is not installed: "
        f"run pip install 'stilltide[{extra}]'"
    )


def require_module(what: str, module: str) -> None:
    """Raises `MissingExtraError` unless a module of `EXTRA_OF_MODULE` is installed.

    Args:
        what: as for `missing_extra`.
        module: a module that a process started by this one imports.
    """
    if not _is_installed(module):
        missing = missing_extra(what, ModuleNotFoundError(name=module))
        assert missing is not None, "the module is of no extra"
        raise missing


def installed_extras() -> list[str]:
    """The extras of which every module is installed."""
    lacking = {extra for module, extra in EXTRA_OF_MODULE.items() if not _is_installed(module)}
    return sorted(set(EXTRA_OF_MODULE.values()) - lacking)


def _is_installed(module: str) -> bool:
    return module in sys.modules or find_spec(module) is not None
