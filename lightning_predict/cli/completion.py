"""Shell completion of commands, options, and names of GPUs.

Example::

    completion_text("bash", {"gpus": ("--json", "--help")}, ["T4", "L4"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

_BASH = """_lightning_predict() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  if [ "$COMP_CWORD" = 1 ]; then COMPREPLY=($(compgen -W "{commands}" -- "$word")); return; fi
  case "$before" in --gpus|--gpu|gpus) COMPREPLY=($(compgen -W "{gpus}" -- "$word")); return;; esac
  case "$word" in -*) ;; *) COMPREPLY=($(compgen -f -- "$word")); return;; esac
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
}}
complete -o filenames -F _lightning_predict lightning-predict
"""

_CASE = '    {name}) COMPREPLY=($(compgen -W "{options}" -- "$word"));;'

_FISH = "complete -c lightning-predict -n '__fish_seen_subcommand_from {name}' -l {option}"


def completion_text(
    shell: Literal["bash", "zsh", "fish"], options: Mapping[str, Sequence[str]], gpus: Sequence[str]
) -> str:
    """Return the completion code for a shell's startup file.

    Args:
        shell: Name of the shell.
        options: Options of each command, by command name.
        gpus: Names of GPUs.
    """
    names = " ".join(gpus)
    if shell == "fish":
        lines = [f"complete -c lightning-predict -f -n __fish_use_subcommand -a '{' '.join(options)}'"]
        for name, own in options.items():
            for option in own:
                values = f" -x -a '{names}'" if option in ("--gpus", "--gpu") else ""
                lines.append(_FISH.format(name=name, option=option.removeprefix("--")) + values)
        return "\n".join(lines) + "\n"
    cases = "\n".join(_CASE.format(name=name, options=" ".join(own)) for name, own in options.items())
    text = _BASH.format(commands=" ".join(options), gpus=names, cases=cases)
    return f"autoload -U +X bashcompinit && bashcompinit\n{text}" if shell == "zsh" else text
