#!/usr/bin/env bash
# Checks a published sparse model: quality and speed, sparse against dense, and against llama.cpp.
#   scripts/real.sh MODEL [--text F] [--separator S] [--predictors FOLDER] [--original MODEL]
#                         [--outtype T] [--work FOLDER] [--rounds N] [-c N] [-n N]
# MODEL, --original: a GGUF, a folder with one, or a Hugging Face checkpoint, which is converted into
# the work folder (build/real). --original: the dense model that MODEL was made of. llama-bench and
# llama-perplexity are used if they are on the PATH.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
powerinfer=$here/.venv/bin/powerinfer
[ -x "$powerinfer" ] || powerinfer=powerinfer

fail() {
    printf 'real.sh: error: %s\n' "$*" >&2
    exit 1
}
say() { printf '\n== %s\n' "$*"; }

model='' text='' separator='' predictors='' original='' outtype=f16 work=$here/build/real
rounds=3 ctx=512 gen=64
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help)
            sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        --text | --separator | --predictors | --original | --outtype | --work | --rounds | -c | -n)
            [ $# -gt 1 ] || fail "$1 needs a value"
            case $1 in
                -c) ctx=$2 ;;
                -n) gen=$2 ;;
                *) printf -v "${1#--}" %s "$2" ;;
            esac
            shift
            ;;
        -*) fail "unknown option $1" ;;
        *)
            [ -z "$model" ] || fail "two models: $model and $1"
            model=$1
            ;;
    esac
    shift
done
[ "$model" ] || fail "no model; --help shows how"
[ -z "$text" ] || [ -r "$text" ] || fail "$text: cannot be read"
mkdir -p "$work"

# Prints the GGUF of a file or folder; $2: name in the work folder; the rest: arguments of convert.
gguf_of() {
    local from=$1 to=$work/$2.gguf found
    shift 2
    if [ -d "$from" ] && [ ! -e "$from/config.json" ]; then
        found=("$from"/*.gguf)
        [ ${#found[@]} = 1 ] && [ -e "${found[0]}" ] || fail "$from: neither config.json nor one GGUF"
        from=${found[0]}
    fi
    if [ -d "$from" ] || [ $# -gt 0 ]; then
        "$powerinfer" convert "$from" "$@" --outtype "$outtype" --outfile "$to" >&2
        from=$to
    fi
    [ -e "$from" ] || fail "$from: no such file or folder"
    printf '%s' "$from"
}

say "$model"
sparse=$(gguf_of "$model" model ${predictors:+"$predictors"})
about=$("$powerinfer" inspect "$sparse")
if ! grep -q '^neuron-aware *yes' <<<"$about"; then # a dense file: its neurons become rows
    "$powerinfer" convert "$sparse" --outfile "$work/neurons.gguf"
    sparse=$work/neurons.gguf
    about=$("$powerinfer" inspect "$sparse")
fi
sed -n '/^file /,$p' <<<"$about"
modes=(off exact)
if grep -q '^predictors' <<<"$about"; then modes+=(predictor auto); fi
dense=
if [ "$original" ]; then dense=$(gguf_of "$original" original); fi

if [ "$text" ]; then
    options=(--text "$text" -c "$ctx" ${separator:+--separator "$separator"})
    for mode in "${modes[@]}"; do
        say "perplexity, --sparse $mode"
        compared=()
        [ "$mode" = off ] || compared=(--compare off)
        "$powerinfer" perplexity "$sparse" "${options[@]}" --sparse "$mode" "${compared[@]}" |
            grep -E '^(Final|Neurons)|PPL\(Q\)/PPL\(base\)  |^99.0%|^Same'
    done
    if [ "$dense" ]; then
        say "perplexity of the original, $original"
        "$powerinfer" perplexity "$dense" "${options[@]}"
        if command -v llama-perplexity >/dev/null && [ -z "$separator" ]; then
            say "the same by llama.cpp"
            llama-perplexity -m "$dense" -f "$text" -c "$ctx" 2>&1 | grep 'Final estimate'
        fi
    fi
fi

say "speed: tokens/s, GB/s, neurons computed"
# The same weights as plain matrices. llama.cpp may take another activation for them, which costs the
# same time. A FATReLU threshold has no such form.
plain=$work/dense.gguf
"$powerinfer" convert "$sparse" --dense --outfile "$plain" || plain=$dense
speed() { # NAME MODEL MODE
    "$powerinfer" bench "$2" -p 64 -n "$gen" -r 1 --sparse "$3" | sed "1,2d;s/^/$1\t/"
}
for round in $(seq "$rounds"); do
    printf '\nround %s\n' "$round"
    for mode in "${modes[@]}"; do speed "$mode" "$sparse" "$mode"; done
    [ -z "$plain" ] || speed dense "$plain" off
    if [ "$plain" ] && command -v llama-bench >/dev/null; then
        llama-bench -m "$plain" -p 64 -n "$gen" -r 1
    fi
done
