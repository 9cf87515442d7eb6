#compdef tessera
@made@

_tessera_commands() {
    local -a of=(
@commands@
    )
    _describe command of
}

_tessera_checks() {
    local -a of=(
@checks@
    )
    _describe check of
}

_tessera_checkpoint_or_check() {
    _tessera_checks
    _files
}

# Numbers in the names of tensors are * behind what was typed. The checkpoint is the first word that is no option.
_tessera_tensors() {
    local -a of=(${(f)"$($tool help --tensors ${(Q)~line[1]} ${(Q)PREFIX} 2>/dev/null)"})
    compadd -a of
}

_tessera() {
    local tool=$words[1] command=$words[2]
    local -a line specs
    local -A opt_args
    if (( CURRENT == 2 )); then
        _tessera_commands
        return
    fi
    if [[ $command == (help|--help) ]]; then
        (( CURRENT == 3 )) && _tessera_commands || _tessera_checks
        return
    fi
    shift words
    (( CURRENT-- ))
    if [[ $command == verify ]] && (( CURRENT > 2 )) && [[ $words[2] == (gemm|epilogue|dequant|mla|forward|all) ]]; then
        command+=" $words[2]"
        shift words
        (( CURRENT-- ))
    fi
    case $command in
@specs@
    esac
    [[ $command == verify ]] && specs+=('1:checkpoint:_tessera_checkpoint_or_check')
    _arguments $specs '*:file:_files'
}

_tessera "$@"
