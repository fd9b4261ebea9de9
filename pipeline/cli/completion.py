"""`stilltide completion`: completion of commands, options and values in a shell.

*Source*: click's shell completion: the shell's script asks `stilltide` itself, with the variable
`_STILLTIDE_COMPLETE`.
"""

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")

_PROGRAM = "stilltide"
_VARIABLE = "_STILLTIDE_COMPLETE"


@click.command(
    epilog="""\b
Examples:
  stilltide completion --install         for the shell in $SHELL
  stilltide completion zsh --install
  source <(stilltide completion bash)    only for this session
"""
)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write the script to where the shell looks for it.")
def completion(shell: str | None, *, install: bool) -> None:
    """Print the script that completes commands in a shell, or install it.

    Names of clusters after --cluster are completed from the setting `clusters`.
    """
    shell = shell or _own_shell()
    script = completion_script(shell)
    if not install:
        click.echo(script)
        return
    path, more = _place(shell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script + "\n")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}",
            detail=error.strerror or str(error),
            hint=f"print the script instead: stilltide completion {shell}",
        ) from error
    say(f"installed {path}; {more}")


def completion_script(shell: str) -> str:
    """The script for a shell of `SHELLS`."""
    # Imported late: main imports this module when the command runs.
    from stilltide.pipeline.cli.main import cli  # noqa: PLC0415 - see above

    made = get_completion_class(shell)
    assert made is not None, f"click knows {shell}"
    completion = made(cli, {}, _PROGRAM, _VARIABLE)
    return completion.source_template % completion.source_vars()


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name in SHELLS:
        return name
    raise ConfigError(
        f"SHELL is {name!r}, for which there is no completion" if name else "SHELL is not set",
        hint=f"name the shell: stilltide completion {'|'.join(SHELLS)}",
    )


def _place(shell: str) -> tuple[Path, str]:
    """The file that a shell loads, and what is left to do."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    if shell == "bash":
        return data / "bash-completion" / "completions" / _PROGRAM, "open a new shell"
    if shell == "fish":
        return config / "fish" / "completions" / f"{_PROGRAM}.fish", "open a new shell"
    line = "fpath+=(~/.zfunc); autoload -Uz compinit; compinit"
    return home / ".zfunc" / f"_{_PROGRAM}", f"add this to ~/.zshrc: {line}"
