# shellcheck shell=bash
@made@

# What an option of a command takes: words, or @list of words with commas, or @files, @tensors, @nothing.
_tessera_takes() {
    case "$1 $2" in
@values@
    esac
}

_tessera_options() {
    case $1 in
@options@
    esac
}

# The first of COMP_WORDS from FIRST on that is neither an option nor the value of one: the checkpoint.
_tessera_checkpoint() {
    local i word
    for ((i = $1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case " @flags@ " in
        *" $word "*) continue ;;
        esac
        if [[ $word != -* ]]; then
            word=${word//[\\\'\"]/}
            echo "${word/#\~\//$HOME/}"
            return
        fi
        [[ ${COMP_WORDS[i + 1]} != = ]] || i=$((i + 1)) # bash takes "--io=direct" for three words
        i=$((i + 1))
    done
}

_tessera() {
    local cur=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} first=2 takes before= place=
    local commands="@commands@" checks="@checks@"
    COMPREPLY=()
    if [[ $cur == = ]]; then
        cur=
    elif [[ $last == = ]]; then
        last=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    if ((COMP_CWORD == 1)); then
        takes="$commands --help --version"
    elif [[ $command == help || $command == --help ]]; then
        ((COMP_CWORD > 2)) && takes=$checks || takes=$commands
    elif [[ $command == verify ]] && ((COMP_CWORD > 2)) && [[ " $checks " == *" ${COMP_WORDS[2]} "* ]]; then
        command+=" ${COMP_WORDS[2]}"
        first=3
    fi
    if [[ $command == inspect && ($cur == : || $last == :) ]]; then # bash takes "DIR:TENSOR" for three words
        place=$last
        [[ $last != : ]] || place=${COMP_WORDS[COMP_CWORD - 2]}
        [[ $cur != : ]] || cur=
        place=${place//[\\\'\"]/}
        takes=@tensor
    fi
    [[ -n $takes ]] || takes=$(_tessera_takes "$command" "$last")
    if [[ -z $takes && $cur == -* ]]; then
        takes=$(_tessera_options "$command")
    elif [[ -z $takes && $command == verify ]] && ((COMP_CWORD == 2)); then
        takes=$checks
        compopt -o default
    fi
    case $takes in
    "" | @files) compopt -o default ;;
    @nothing) ;;
    @tensors)
        # Within quotation marks bash takes what is offered as it is; else a star has to be guarded.
        mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" help --tensors "$(_tessera_checkpoint "$first")" "${cur//[\\\'\"]/}" 2>/dev/null)
        [[ $cur == [\'\"]* ]] || COMPREPLY=("${COMPREPLY[@]//\*/\\*}")
        ;;
    @tensor) # a single one: no patterns
        mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" help --tensors "${place/#\~\//$HOME/}" "${cur//[\\\'\"]/}" 2>/dev/null | grep -vF '*')
        ;;
    "@list "*)
        [[ $cur != *,* ]] || before=${cur%,*},
        mapfile -t COMPREPLY < <(compgen -P "$before" -W "${takes#@list }" -- "${cur##*,}")
        compopt -o nospace
        ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$takes" -- "$cur") ;;
    esac
}

complete -F _tessera tessera
