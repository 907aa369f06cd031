"""`regard completion`: prints the script with which Tab completes commands, options and values.

The script contains no options. At every Tab it runs `tab.py` of the installed regard, which gets the
completions from the commands through click. So an upgrade needs no new script.
"""

from __future__ import annotations

import os
import shlex
import sys

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

NAME, VARIABLE = "regard", "_REGARD_COMPLETE"
# `tab.py` is found through its package: its path would change with an upgrade of Python in place.
FIND = (
    "import importlib.util, runpy; "
    'found = importlib.util.find_spec("regard").submodule_search_locations[0]; '
    'runpy.run_path(found + "/cli/tab.py", run_name="__main__")'
)
HELP = """Print a script for Tab completion of regard's commands in your shell.

It completes commands, options and their values, files, keys of --shape, and names of scores, tasks,
peers, claims and bundled models. A Tab takes about a tenth of a second, since torch is not loaded. After an
upgrade the same script completes new options too.

\b
Examples:
  regard completion bash > ~/.local/share/bash-completion/completions/regard
  regard completion zsh > ~/.zfunc/_regard
  regard completion fish > ~/.config/fish/completions/regard.fish
  source <(regard completion bash)

bash must be 4.4 or newer; the first example needs bash-completion. For zsh, ~/.zfunc must be on the
fpath before compinit. docs/cli.md explains each step.

Exit codes: 0 done; 2 a shell without a script.
"""
BASH = r"""# Completion of regard for bash 4.4 and newer. Made by: regard completion bash
%(complete_func)s() {
    local IFS=$'\n' line="${COMP_LINE:0:COMP_POINT}" breaks="${COMP_WORDBREAKS//[^=:]/}"
    local completion type value prefix="" word="${line//\\ /__}"
    word="${word##*[[:space:]]}"  # an escaped space is part of it
    # bash completes what stands behind the last = or :, and the answers are whole words.
    if [[ -n $breaks ]]; then prefix="${word%%"${word##*[$breaks]}"}"; fi
    COMPREPLY=()
    for completion in $(COMP_WORDS="$line" %(complete_var)s=bash_complete %(command)s 2>/dev/null); do
        type="${completion%%%%,*}" value="${completion#*,}"
        case $type in
            dir) compopt -o plusdirs ;;
            file) compopt -o default ;;
            plain)
                COMPREPLY+=("${value#"$prefix"}")
                if [[ $value == *= ]]; then compopt -o nospace; fi ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""
ZSH = r"""#compdef %(prog_name)s
# Completion of regard for zsh. Made by: regard completion zsh
%(complete_func)s() {
    local type key descr
    local -a response plain described open
    response=("${(@f)$(COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \
%(complete_var)s=zsh_complete %(command)s 2>/dev/null)}")
    for type key descr in ${response}; do
        case $type in
            dir|file)
                [[ $PREFIX == --*=* ]] && compset -P 1 '*='
                if [[ $type == dir ]]; then _path_files -/; else _path_files -f; fi ;;
            plain)
                if [[ $key == *= ]]; then open+=("$key")
                elif [[ $descr == _ ]]; then plain+=("$key")
                else described+=("$key:$descr"); fi ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#plain )) && compadd -U -V unsorted -a plain
    (( $#open )) && compadd -U -V unsorted -S '' -a open
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""
FISH = r"""# Completion of regard for fish. Made by: regard completion fish
function %(complete_func)s
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \
COMP_CWORD=(commandline -t) %(command)s 2>/dev/null)
    set -l option (string match -r -- '^--[^=]+=' (commandline -t))
    for completion in $response
        set -l parts (string split -m 1 "," -- $completion)
        switch $parts[1]
            case dir
                string replace -r -- '^' "$option" (__fish_complete_directories $parts[2])
            case file
                string replace -r -- '^' "$option" (__fish_complete_path $parts[2])
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class WholeWords(ShellComplete):
    """Completes `--device=c` to `--device=cpu`: shells replace whole words, but click returns `cpu`."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """The completions that click finds, with the option in front of the value."""
        found = super().get_completions(args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if equals and option.startswith("--"):
            for item in found:
                # The shell itself completes files, and knows where their names begin.
                item.value = f"{option}={item.value}" if item.type == "plain" else item.value
        return found


class Bash(WholeWords, BashComplete):
    """Completion for bash. It gets the whole line, since bash splits words at `=` and `:`."""

    source_template = BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the last, and the last, which may be empty."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        between = line[-1:].isspace() and not line.endswith("\\ ")
        if not words or (between and before_quote(line) is None):
            return words, ""
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """The completion as bash inserts it: with escaped spaces, or what follows an open quote."""
        head = before_quote(os.environ["COMP_WORDS"])
        if head is None:
            return super().format_completion(item).replace(" ", "\\ ")
        item.value = item.value.removeprefix(head)
        return super().format_completion(item)


def before_quote(line: str) -> str | None:
    """The part of the last word before an open quote, such as `--tasks=`; None without an open quote."""
    word, quote, escaped = "", "", False
    for letter in line:
        if escaped:
            escaped = False
        elif letter == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in ("'", '"'):
            quote = letter
        elif letter.isspace():
            word = ""
        else:
            word += letter
    return word if quote else None


class Zsh(WholeWords, ZshComplete):
    """Completion for zsh: click's, with our script."""

    source_template = ZSH


class Fish(WholeWords, FishComplete):
    """Completion for fish: click's, with our script."""

    source_template = FISH


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def register() -> None:
    """Register these classes with click, in place of its own."""
    for name, shell in SHELLS.items():
        add_completion_class(shell, name)


def script(shell: str) -> str:
    """The script for a shell. With -P Python imports nothing from the user's current folder."""
    from regard.cli.app import group

    found = SHELLS[shell](group, {}, NAME, VARIABLE)
    command = shlex.join([sys.executable, "-P", "-c", FIND])
    return found.source_template % {**found.source_vars(), "command": command}


@click.command(help=HELP)
@click.argument("shell", metavar="SHELL", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the script; the help text is above."""
    click.echo(script(shell), nl=False)
