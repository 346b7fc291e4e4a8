"""`completion`: words that the shell completes: commands, their options, and names of GPUs.

Example::

    lightning-predict completion bash >> ~/.bashrc
"""

from __future__ import annotations

from typing import Literal

from lightning_predict.cli.answers import CommandAnswer

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


def completion(shell: Literal["bash", "zsh", "fish"]) -> CommandAnswer:
    """Print what a shell needs to complete commands, options and names of GPUs.

    Add it to the shell's start: `lightning-predict completion bash >> ~/.bashrc`, `completion zsh >> ~/.zshrc` or
    `completion fish > ~/.config/fish/completions/lightning-predict.fish`.

    Args:
        shell: Whose words are printed.
    """
    from lightning_predict.cli.parsing import COMMANDS, option_names
    from lightning_predict.gpus import gpu_names

    gpus = " ".join(gpu_names())
    if shell == "fish":
        lines = [f"complete -c lightning-predict -f -n __fish_use_subcommand -a '{' '.join(COMMANDS)}'"]
        for name in COMMANDS:
            for option in option_names(name):
                values = f" -x -a '{gpus}'" if option in ("--gpus", "--gpu") else ""
                lines.append(_FISH.format(name=name, option=option.removeprefix("--")) + values)
        text = "\n".join(lines) + "\n"
    else:
        cases = "\n".join(_CASE.format(name=name, options=" ".join(option_names(name))) for name in COMMANDS)
        text = _BASH.format(commands=" ".join(COMMANDS), gpus=gpus, cases=cases)
        if shell == "zsh":
            text = f"autoload -U +X bashcompinit && bashcompinit\n{text}"
    return CommandAnswer(data=lambda: {"shell": shell, "text": text}, show=lambda: print(text, end=""))
