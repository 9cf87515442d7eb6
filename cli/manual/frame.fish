@made@

# The words before the one at the cursor, "tessera" first.
function __tessera_words
    commandline -opc
end

# Whether the word at the cursor has this place, and stands behind this word, if one is given.
function __tessera_at
    set -l words (__tessera_words)
    test (count $words) = $argv[1]; and begin
        test (count $argv) = 1; or test "$words[2]" = "$argv[2]"
    end
end

# Whether the command is this one, "verify" alone or with the check behind it.
function __tessera_is
    set -l words (__tessera_words)
    set -l command $words[2]
    if test "$command" = verify; and contains -- "$words[3]" @names@
        set -a command $words[3]
    end
    test "$command" = "$argv"
end

# Tensors of the checkpoint, which is the first word that is neither an option nor the value of one.
function __tessera_tensors
    set -l words (__tessera_words)
    set -l tool $words[1]
    set -l skip no
    __tessera_is verify; or test "$words[2]" != verify; or set -e words[3]
    for word in $words[3..]
        if test $skip = yes
            set skip no
        else if string match -q -- '-*' $word
            contains -- $word @flags@; or string match -q -- '*=*' $word; or set skip yes
        else
            $tool help --tensors $word (string replace -r -- '^--?[a-z-]+=' '' (commandline -ct)) 2>/dev/null
            return
        end
    end
end

# Words for a list with commas, behind what it holds already.
function __tessera_list
    set -l before (string match -r -- '^.*,' (string replace -r -- '^--?[a-z-]+=' '' (commandline -ct)))
    printf '%s\n' $before$argv
end

complete -c tessera -f
complete -c tessera -n 'not __tessera_at 1; and not __tessera_is help' -F
@commands@
@checks@
@options@
